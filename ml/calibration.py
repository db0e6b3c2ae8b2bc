"""From distances to probabilities, and from a false-match rate that one accepts to a threshold."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ml.errors import Corrupt, NotFinite, TooFewPairs, WrongShape
from ml.metric import EUCLIDEAN, Metric
from ml.rate_intervals import clopper_pearson, effective_pairs, is_enough
from ml.types import Ids, Rows

Distances = NDArray[np.float64]  # (n,), smaller is more alike: see ml.types.Metric

FEWEST = 5
FLATTEST = 1e-3
MAX_FACES_PER_PERSON = 10
"""Of one person, in pairs of different people: else one with hundreds of photos decides what two people are like."""


@dataclass(frozen=True)
class Threshold:
    """Faces at most this `distance` apart are taken for one person.

    fmr: the share of impostor pairs that this takes, never above the rate asked for
    low, high: the 95 % interval of the rate among other people of the same kind, 0 to 1: Clopper and Pearson's for the
        effective number of independent pairs (`ml.rate_intervals`). 0 and 1 where nobody knows whose the pairs are
    enough: whether the evidence carries it: `high` is at most three times `low`
    """

    distance: float
    fmr: float
    low: float
    high: float
    enough: bool


@dataclass(frozen=True)
class Impostors:
    """How far apart different people lie, as a few hundred quantiles: dense where few are near.

    n: pairs seen; distances: some of theirs, rising; counts: how many pairs are at most that far apart
    effective: how many independent pairs would say as much of the rate at each of the distances; empty where it was not
        measured, as in what older versions stored
    """

    n: int
    distances: tuple[float, ...]
    counts: tuple[int, ...]
    effective: tuple[float, ...] = ()

    @classmethod
    def of(cls, distances: Distances, people: Ids | None = None, keep: int = 400) -> Self:
        """people: (n, 2) numbers of the two people of each pair; None: no two pairs share anybody.

        Raises TooFewPairs where there is no pair, NotFinite.
        """
        order = np.argsort(_finite(distances), kind="stable")
        ordered, n = np.asarray(distances, np.float64)[order], len(order)
        if not n:
            raise TooFewPairs("pairs of different people", 1, 0)
        ranks = np.concatenate([np.arange(min(n, keep // 4)), np.geomspace(1, n, keep).round() - 1])
        kept = np.unique(ordered[np.unique(ranks).astype(np.int64)])
        counts = np.searchsorted(ordered, kept, side="right")
        effective = np.full(len(kept), n) if people is None else effective_pairs(people[order])[counts - 1]
        return cls(n, tuple(kept.tolist()), tuple(counts.tolist()), tuple(effective.round(1).tolist()))

    def fmr(self, distance: Distances) -> Distances:
        """The estimated share of impostor pairs that lie as near or nearer; never 0: one more than were seen
        nearer, of one more than there were."""
        nearer: Distances = np.interp(distance, self.distances, self.counts, left=0, right=self.n)
        return (nearer + 1) / (self.n + 1)

    @property
    def spread(self) -> float:
        """Half the way from the 16 % to the 84 % quantile: one standard deviation, were they normal; 0 where all of
        them are alike. What distances of different embeddings are divided by to be weighed against each other (the
        Z-norm of speaker recognition: Auckenthaler et al. 2000)."""
        low, high = np.interp([0.16 * self.n, 0.84 * self.n], self.counts, self.distances)
        return float(high - low) / 2

    def threshold(self, fmr: float) -> Threshold:
        """The largest kept distance that takes no more than this share (0 to 1). Raises WrongShape."""
        if not 0 < fmr <= 1:
            raise WrongShape("fmr", "above 0 and at most 1", fmr)
        within = int(np.searchsorted(self.counts, fmr * self.n + 1e-9, side="right"))
        taken = self.counts[within - 1] if within else 0
        distance = self.distances[within - 1] if within else np.nextafter(self.distances[0], -np.inf)
        low, high = self._interval(within)
        return Threshold(float(distance), taken / self.n, low, high, is_enough(low, high))

    def _interval(self, within: int) -> tuple[float, float]:
        """Of the rate at the `within`-th kept distance; 0: just below the first."""
        if not self.effective:
            return 0.0, 1.0
        pairs = self.effective[max(within - 1, 0)]
        return clopper_pearson(self.counts[within - 1] / self.n * pairs if within else 0.0, pairs)


@dataclass(frozen=True)
class Calibration:
    """What a distance of one embedding and task means: P(same) = 1 / (1 + exp(slope * distance - intercept)).

    The probability is for a prior of one half, and falls strictly with the distance.
    """

    slope: float
    intercept: float
    impostors: Impostors

    @classmethod
    def fit(cls, genuine: Distances, impostor: Distances, people: Ids | None = None) -> Self:
        """Platt's method on the distance, both classes weighing alike whatever their numbers.

        His softened targets, (n + 1) / (n + 2) and 1 / (n + 2), keep it from being sure of what few pairs say, and
        a floor under the slope keeps order where the embedding has learned nothing. Raises TooFewPairs, NotFinite.
        people: (n, 2) numbers of the two people of each impostor pair; None: no two pairs share anybody.
        Source: Platt 1999; Lin, Lin and Weng 2007.
        """
        for what, found in (("same", genuine), ("different", impostor)):
            if len(found) < FEWEST:
                raise TooFewPairs(f"pairs of the {what} kind to calibrate with", FEWEST, len(found))
        same, other = _finite(genuine), _finite(impostor)
        centre = (same.mean() + other.mean()) / 2
        width = np.concatenate([same - same.mean(), other - other.mean()]).std() + abs(centre) * 1e-9 + 1e-12
        slope, intercept = _platt((same - centre) / width, (other - centre) / width)
        return cls(float(slope / width), float(intercept + slope * centre / width), Impostors.of(other, people))

    def probability(self, distance: Distances) -> Distances:
        """P(same person | distance) at a prior of one half, in 0..1, of the shape given."""
        found: Distances = expit(self.intercept - self.slope * np.asarray(distance, np.float64))
        return found

    def similarity(self, distance: Distances) -> Distances:
        """100 x the probability."""
        return 100 * self.probability(distance)

    def distance(self, similarity: float) -> float:
        """The distance that has this similarity; infinite at 0 and 100."""
        with np.errstate(divide="ignore"):
            odds = np.log(np.float64(similarity)) - np.log(np.float64(100 - similarity))
        return float((self.intercept - odds) / self.slope)

    def fmr_estimate(self, distance: Distances) -> Distances:
        return self.impostors.fmr(distance)

    def threshold(self, fmr: float) -> Threshold:
        return self.impostors.threshold(fmr)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """What `to_dict` gave, through JSON or not. Raises Corrupt."""
        try:
            seen = kept["impostors"]
            effective = tuple(seen.get("effective", ()))
            if len(effective) not in (0, len(seen["distances"])):
                raise ValueError("effective numbers are not those of the distances")
            impostors = Impostors(int(seen["n"]), tuple(seen["distances"]), tuple(seen["counts"]), effective)
            return cls(float(kept["slope"]), float(kept["intercept"]), impostors)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not a calibration: {error}") from error


def threshold_for_fmr(impostor_distances: Distances, fmr: float, people: Ids | None = None) -> Threshold:
    """The threshold for a false-match rate, exact: from every one of these (n,) distances.

    people: (n, 2) numbers of the two people of each pair; None: no two pairs share anybody
    Raises TooFewPairs, NotFinite, WrongShape.
    """
    return Impostors.of(impostor_distances, people, keep=4 * len(impostor_distances)).threshold(fmr)


def sample_impostors(rows: Rows, people: Ids, n: int, seed: int, metric: Metric = EUCLIDEAN) -> Distances:
    """Distances of the pairs that `draw_impostor_pairs` draws among (N, d) rows."""
    return metric.apart(rows, draw_impostor_pairs(people, n, seed))


def draw_impostor_pairs(people: Ids, n: int, seed: int) -> Ids:
    """(P, 2): places of at most n different pairs of faces of different people, every pair as likely as another.

    people: (N,) numbers; -1 is unknown and left out; of each person `MAX_FACES_PER_PERSON` faces at most are used
    """
    rng = np.random.default_rng(seed)
    known = choose_faces(people, rng)
    if len(known) < 2:
        return np.empty((0, 2), np.int64)
    first, second = rng.choice(known, (2, 2 * n))
    apart = people[first] != people[second]
    return _unique(first[apart], second[apart], len(people), n, rng)


def choose_faces(people: Ids, rng: np.random.Generator, limit: int = MAX_FACES_PER_PERSON) -> Ids:
    """Places, rising, of at most `limit` faces drawn of each of (N,) people; -1 is unknown and left out."""
    known = np.flatnonzero(people >= 0)
    if np.unique(people[known], return_counts=True)[1].max(initial=0) <= limit:
        return known
    order = rng.permutation(known)
    order = order[np.argsort(people[order], kind="stable")]
    turn = np.arange(len(order)) - np.searchsorted(people[order], people[order])
    return np.sort(order[turn < limit])


def sample_genuine(rows: Rows, people: Ids, n: int, seed: int, metric: Metric = EUCLIDEAN) -> Distances:
    """Distances of at most n different pairs of one person's faces. The person is drawn first, every one as likely,
    so that one with a thousand photos does not stand for all."""
    order, rng = np.argsort(people, kind="stable"), np.random.default_rng(seed)
    numbers, start, photos = np.unique(people[order], return_index=True, return_counts=True)
    several = np.flatnonzero((numbers >= 0) & (photos > 1))
    if not len(several):
        return np.empty(0)
    person = rng.choice(several, n)
    one = rng.integers(0, photos[person])
    other = (one + rng.integers(1, photos[person])) % photos[person]
    first, second = order[start[person] + one], order[start[person] + other]
    return metric.apart(rows, _unique(first, second, len(rows), n, rng))


def _unique(first: Ids, second: Ids, faces: int, n: int, rng: np.random.Generator) -> Ids:
    """(P, 2): the different ones of these unordered pairs, at most n of them, in a random order."""
    codes = np.sort(np.minimum(first, second) * faces + np.maximum(first, second))  # np.unique takes ten times as long
    codes = rng.permutation(codes[np.diff(codes, prepend=-1) > 0])[:n]
    return np.stack(np.divmod(codes, faces), axis=1)


def _finite(distances: Distances) -> Distances:
    if not np.isfinite(distances).all():
        raise NotFinite("a distance")
    return np.asarray(distances, np.float64)


def _platt(same: Distances, other: Distances) -> tuple[float, float]:
    """(slope, intercept) of the smallest balanced cross-entropy against Platt's targets."""
    from scipy.optimize import minimize  # a third of a second to load, and only workers fit

    scores, sizes = np.concatenate([same, other]), np.array([len(same), len(other)])
    is_same = np.arange(len(scores)) < len(same)
    targets = np.where(is_same, 1 - 1 / (sizes[0] + 2), 1 / (sizes[1] + 2))
    weights = 0.5 / np.where(is_same, *sizes)

    def loss(at: Distances) -> tuple[float, Distances]:
        logits = at[1] - at[0] * scores
        error = weights * (expit(logits) - targets)
        entropy = weights @ (np.logaddexp(0, logits) - targets * logits)
        return float(entropy), np.array([-error @ scores, error.sum()])

    found = minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=[(FLATTEST, None), (None, None)]).x
    return float(found[0]), float(found[1])
