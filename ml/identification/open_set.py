"""From the rate at which strangers may be named to the distance at which a search names somebody.

FPIR, the false positive identification rate, is the share of searches for people who are not enrolled that name
somebody (ISO/IEC 19795-1). It is a rate of searches in one gallery, not of pairs, and grows with the gallery.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from ml.calibration import Impostors
from ml.errors import Corrupt, TooFewPairs, WrongShape
from ml.identification.decision_rule import NEAREST_FACE, DecisionRule

Floats = NDArray[np.float64]
Source = Literal["leave-one-out", "held-out", "distractors"]
Evidence = Literal["leave-one-out", "held-out", "distractors", "pairs"]

MIN_FALSE_ALARMS = 5.0
"""Below so many expected false alarms among the independent searches a threshold is not taken from them."""
POSSIBLE_FACTOR, MAX_POSSIBLE_FPIR = 10.0, 0.3
"""A person is "possible" at ten times the rate of a match, but never at a rate above 30 %."""
KEPT_DISTANCES = 400
MIN_PAIRS = 200
"""Below so many impostor pairs their tail says too little to be extended."""


def fpir_at_size(fpir: float, measured_faces: int, faces: int) -> float:
    """The FPIR at another gallery size, each face being as likely to raise a false alarm: 1 - (1 - fpir)^(N / N0)."""
    return -math.expm1(faces / max(1, measured_faces) * math.log1p(-min(fpir, 1 - 1e-12)))


@dataclass(frozen=True)
class StrangerSearches:
    """What searches for people who are not enrolled came to in one gallery.

    source: whose searches; people, searches: how many; gallery_faces: faces searched
    distances: person distances to the best named person, rising; shares: the share of searches that come at least so
        near, every stranger weighing alike; effective: how many independent searches that share is worth
    """

    source: Source
    people: int
    searches: int
    gallery_faces: int
    distances: tuple[float, ...]
    shares: tuple[float, ...]
    effective: tuple[float, ...]

    @classmethod
    def from_distances(cls, source: Source, distances: Floats, people: NDArray[np.int64], gallery_faces: int) -> Self:
        """Summarise (S,) person distances of searches for (S,) strangers; +inf where nobody named was found.

        Several searches for one stranger depend on each other: `effective` is p(1 - p) over the variance of the share
        between strangers, at least the number of strangers and at most that of searches. Raises TooFewPairs where there
        is no search.
        """
        if not len(distances):
            raise TooFewPairs("searches for strangers", 1, 0)
        numbers, own, counts = np.unique(people, return_inverse=True, return_counts=True)
        order = np.argsort(distances, kind="stable")
        weights = 1.0 / (counts[own[order]] * len(numbers))
        ordered = distances[order]
        shares = np.minimum(np.cumsum(weights), 1.0)
        finite = int(np.isfinite(ordered).sum())
        places = np.unique(np.concatenate([np.arange(min(finite, 200)), np.geomspace(1, finite, KEPT_DISTANCES) - 1])
                           .astype(np.int64)) if finite else np.empty(0, np.int64)  # fmt: skip
        effective = [_effective(shares[place], own[order[: place + 1]], counts, len(distances)) for place in places]
        return cls(
            source,
            len(numbers),
            len(distances),
            gallery_faces,
            tuple(ordered[places].tolist()),
            tuple(shares[places].tolist()),
            tuple(effective),
        )

    def quantile(self, share: float) -> tuple[float, float, float]:
        """The largest distance that at most this share of searches reaches; that share; what it is worth in searches.

        Where even the nearest search is one too many, just below that one.
        """
        within = int(np.searchsorted(self.shares, share + 1e-12, side="right"))
        if not self.distances:
            return np.inf, 0.0, float(self.people)
        if not within:
            return float(np.nextafter(self.distances[0], -np.inf)), 0.0, self.effective[0]
        return self.distances[within - 1], self.shares[within - 1], self.effective[within - 1]

    def share_within(self, distance: float) -> float:
        """The share of searches that come at least so near."""
        within = int(np.searchsorted(self.distances, distance, side="right"))
        return self.shares[within - 1] if within else 0.0


@dataclass(frozen=True)
class PersonThreshold:
    """A search names the nearest person where the person distance is at most `person_distance`.

    fpir: the rate asked for; possible_distance: up to here a person is worth a look (ten times the rate)
    low, high: 95 % interval of the rate that is really to be expected here; None where only pairs are known
    enough: whether searches carry it; else it comes from pairs, on the safe side, and `more_people` says how many
        more enrolled people it would take
    """

    fpir: float
    person_distance: float
    possible_distance: float
    low: float | None
    high: float | None
    enough: bool
    rule: DecisionRule
    source: Evidence
    people: int
    searches: int
    measured_faces: int
    more_people: int


@dataclass(frozen=True)
class OpenSetCalibration:
    """How strangers score against one gallery, by one decision rule.

    strangers: searches from one or two sources; optimistic: whether the model has learned the very people whose pairs
        are known, so that pairs look further apart than those of strangers
    """

    rule: DecisionRule
    strangers: tuple[StrangerSearches, ...] = ()
    optimistic: bool = False

    def threshold(self, fpir: float, faces: int, pairs: tuple[Impostors, ...] = ()) -> PersonThreshold | None:
        """The threshold for a rate (0 to 1) in a gallery of so many faces now; None where nothing is known.

        Of several sources with enough searches the strictest counts: one that is nearer to harmless is optimistic.
        Where none has enough, each face is taken for an independent chance of a false match, 1 - (1 - fmr)^N, which
        names fewer strangers than asked for. Raises WrongShape.
        """
        if not 0 < fpir < 1:
            raise WrongShape("fpir", "above 0 and below 1", fpir)
        carried = [(s, _rate_at_measured(s, fpir, faces)) for s in self.strangers]
        enough = [s for s, rate in carried if s.quantile(rate)[2] * rate >= MIN_FALSE_ALARMS]
        if enough:
            return min((self._from_searches(s, fpir, faces) for s in enough), key=lambda t: t.person_distance)
        return self._from_pairs(fpir, faces, pairs)

    def _from_searches(self, searches: StrangerSearches, fpir: float, faces: int) -> PersonThreshold:
        distance, share, effective = searches.quantile(_rate_at_measured(searches, fpir, faces))
        low, high = rate_interval(share, effective)
        possible = searches.quantile(_rate_at_measured(searches, possible_fpir(fpir), faces))[0]
        return PersonThreshold(
            fpir, distance, max(distance, possible),
            fpir_at_size(low, searches.gallery_faces, faces), fpir_at_size(high, searches.gallery_faces, faces),
            True, self.rule, searches.source, searches.people, searches.searches, searches.gallery_faces, 0,
        )  # fmt: skip

    def _from_pairs(self, fpir: float, faces: int, pairs: tuple[Impostors, ...]) -> PersonThreshold | None:
        scale = 3.0 if self.optimistic else 1.0
        found = [_tail_distance(p, fpir / scale, faces) for p in pairs]
        distances = [d for d in found if d is not None]
        if not distances:
            return None
        loose = [_tail_distance(p, possible_fpir(fpir) / scale, faces) for p in pairs]
        possible = min(d for d in loose if d is not None)
        most = max(self.strangers, key=lambda s: s.people, default=None)
        people, searches, measured = (most.people, most.searches, most.gallery_faces) if most else (0, 0, 0)
        missing = max(1, math.ceil(MIN_FALSE_ALARMS / fpir) - people)
        return PersonThreshold(
            fpir, min(distances), max(min(distances), possible), None, None,
            False, NEAREST_FACE, "pairs", people, searches, measured, missing,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """What `to_dict` gave, through JSON or not. Raises Corrupt."""
        try:
            strangers = tuple(
                StrangerSearches(
                    s["source"],
                    int(s["people"]),
                    int(s["searches"]),
                    int(s["gallery_faces"]),
                    tuple(s["distances"]),
                    tuple(s["shares"]),
                    tuple(s["effective"]),
                )
                for s in kept["strangers"]
            )
            return cls(DecisionRule.from_dict(kept["rule"]), strangers, bool(kept["optimistic"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not an open-set calibration: {error}") from error


def possible_fpir(fpir: float) -> float:
    """The rate of the shortlist that goes with a decision at `fpir`."""
    return max(fpir, min(POSSIBLE_FACTOR * fpir, MAX_POSSIBLE_FPIR))


def rate_interval(share: float, searches: float) -> tuple[float, float]:
    """The 95 % interval of the true rate beyond the order statistic that `share` of so many independent searches
    reach: quantiles of Beta(k, n - k + 1), exact for a threshold that was chosen by these searches."""
    alarms = share * searches
    low = float(betaincinv(alarms, searches - alarms + 1, 0.025)) if alarms > 0 else 0.0
    high = float(betaincinv(alarms + 1, max(searches - alarms, 1e-9), 0.975))
    return low, high


def _rate_at_measured(searches: StrangerSearches, fpir: float, faces: int) -> float:
    """What rate in the gallery as it was measured gives `fpir` in one of `faces` now."""
    return fpir_at_size(fpir, max(1, faces), searches.gallery_faces)


def _effective(share: float, alarms: NDArray[np.int64], counts: NDArray[np.int64], searches: int) -> float:
    """How many independent searches a share is worth. alarms: the stranger of each search that comes so near."""
    rates = np.bincount(alarms, minlength=len(counts)) / counts
    variance = float(rates.var()) / max(1, len(counts) - 1)
    if variance <= 0 or not 0 < share < 1:
        return float(len(counts))
    return float(np.clip(share * (1 - share) / variance, min(len(counts), searches), searches))


def _tail_distance(impostors: Impostors, fpir: float, faces: int) -> float | None:
    """The nearest-face distance at which independent pairs give this FPIR; beyond the pairs seen, their lower tail is
    extended by the steps of its last decade, which falls faster than a bell curve's and so stays on the safe side."""
    fmr = fpir_at_size(fpir, max(1, faces), 1)
    if impostors.n < MIN_PAIRS:
        return None
    known = 10 / impostors.n
    if fmr >= known:
        return impostors.threshold(min(fmr, 1.0)).distance
    last, before = (float(np.interp(c, impostors.counts, impostors.distances)) for c in (10, 100))
    return last - max(0.0, before - last) * math.log10(known / fmr)
