"""The distances of pairs of different people, and the thresholds that follow from them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration.distance_map import DistanceMap
from ml.calibration.rate_intervals import clopper_pearson, effective_pairs, is_enough
from ml.errors import NotFinite, TooFewPairs, WrongShape
from ml.types import Ids

Distances = NDArray[np.float64]  # (n,), smaller is more alike
COMPARED_RATES = 0.1, 0.01, 0.001


@dataclass(frozen=True)
class DistanceThreshold:
    """Accept two faces as one person when they lie at most `distance` apart.

    fmr: share of the measured impostor pairs that this accepts, never above the requested rate
    low, high: 95 % interval of that rate among other people of the same kind, 0 to 1: Clopper and Pearson's for the
        effective number of independent pairs (`ml.calibration.rate_intervals`); 0 and 1 if the people are unknown
    enough: whether the evidence supports the rate: `high` is at most three times `low`
    """

    distance: float
    fmr: float
    low: float
    high: float
    enough: bool


@dataclass(frozen=True)
class ImpostorDistances:
    """The distribution of distances between different people, as a few hundred quantiles, denser at the near end.

    n: number of pairs measured
    distances: some of their distances, rising
    counts: number of pairs at or below each of these distances
    effective: number of independent pairs that would tell as much about the rate at each distance; empty if unknown,
        as in models saved by older versions
    """

    n: int
    distances: tuple[float, ...]
    counts: tuple[int, ...]
    effective: tuple[float, ...] = ()

    @classmethod
    def of(cls, distances: Distances, people: Ids | None = None, keep: int = 400) -> Self:
        """Summarise (n,) distances in about `keep` quantiles.

        people: (n, 2) numbers of the two people of each pair; None: no two pairs share a person
        Raises TooFewPairs if there is no pair, NotFinite.
        """
        order = np.argsort(require_finite(distances), kind="stable")
        ordered, n = np.asarray(distances, np.float64)[order], len(order)
        if not n:
            raise TooFewPairs("pairs of different people", 1, 0)
        ranks = np.concatenate([np.arange(min(n, keep // 4)), np.geomspace(1, n, keep).round() - 1])
        kept = np.unique(ordered[np.unique(ranks).astype(np.int64)])
        counts = np.searchsorted(ordered, kept, side="right")
        effective = np.full(len(kept), n) if people is None else effective_pairs(people[order], counts)
        return cls(n, tuple(kept.tolist()), tuple(counts.tolist()), tuple(effective.round(1).tolist()))

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Restore what `asdict` returned, through JSON or not. Raises KeyError, TypeError or ValueError."""
        effective = tuple(stored.get("effective", ()))
        if len(effective) not in (0, len(stored["distances"])):
            raise ValueError("there is not one effective number for each distance")
        return cls(int(stored["n"]), tuple(stored["distances"]), tuple(stored["counts"]), effective)

    def fmr(self, distance: Distances) -> Distances:
        """Estimate the share of impostor pairs at or below each of these (n,) distances.

        The estimate is never 0: one is added to both the number of nearer pairs and the number of all pairs.
        """
        nearer: Distances = np.interp(distance, *self._curve, left=0, right=self.n)
        return (nearer + 1) / (self.n + 1)

    def surely_exceeds(self, other: Self) -> bool:
        """Whether more pairs are near than of another distribution, beyond chance, at one of COMPARED_RATES."""
        if not self.effective or not other.effective:
            return False
        limits = [other.threshold(rate) for rate in COMPARED_RATES]
        within = np.searchsorted(self.distances, [limit.distance for limit in limits], side="right")
        return any(self._interval(int(i))[0] > limit.high for i, limit in zip(within, limits, strict=True))

    def join_strictest(self, other: Self) -> Self:
        """Return the distribution that has, at each distance, the greater share of nearer pairs of the two."""
        kept, n = np.union1d(self.distances, other.distances), max(self.n, other.n)
        shares = np.stack([np.interp(kept, *one._curve, left=0, right=one.n) / one.n for one in (self, other)])
        chosen = np.empty(0)
        if self.effective and other.effective:
            effective = np.stack([np.interp(kept, one.distances, one.effective) for one in (self, other)])
            chosen = np.where(shares == shares.max(axis=0), effective, np.inf).min(axis=0)
        counts = np.ceil(shares.max(axis=0) * n - 1e-9).astype(np.int64)
        return type(self)(n, tuple(kept.tolist()), tuple(counts.tolist()), tuple(chosen.round(1).tolist()))

    def join_if_nearer(self, other: Self | None) -> Self:
        """Return the strictest of the two if surely more pairs of the other one are near, otherwise this one."""
        return self.join_strictest(other) if other is not None and other.surely_exceeds(self) else self

    def without_evidence(self) -> Self:
        """Return the same distribution, whose rates are known no better than from one pair."""
        return replace(self, effective=(1.0,) * len(self.distances))

    def carried_over(self, distances: DistanceMap) -> Self:
        """Return the distribution in another embedding."""
        return replace(self, distances=tuple(distances.apply(np.array(self.distances)).tolist()))

    @cached_property
    def _curve(self) -> tuple[Distances, Distances]:
        """The distances and counts as arrays: a search asks for rates, and converting takes longer than looking up."""
        return np.array(self.distances, np.float64), np.array(self.counts, np.float64)

    @property
    def spread(self) -> float:
        """Half the way from the 16 % to the 84 % quantile: the standard deviation, if the distances are normal.

        Distances of different embeddings are divided by it before they are weighed against each other (the Z-norm of
        speaker recognition: Auckenthaler et al. 2000). It is 0 if all distances are equal.
        """
        low, high = np.interp([0.16 * self.n, 0.84 * self.n], self.counts, self.distances)
        return float(high - low) / 2

    def threshold(self, fmr: float) -> DistanceThreshold:
        """Return the largest kept distance that accepts at most this share (0 to 1). Raises WrongShape."""
        if not 0 < fmr <= 1:
            raise WrongShape("fmr", "above 0 and at most 1", fmr)
        within = int(np.searchsorted(self.counts, fmr * self.n + 1e-9, side="right"))
        accepted = self.counts[within - 1] if within else 0
        distance = self.distances[within - 1] if within else np.nextafter(self.distances[0], -np.inf)
        low, high = self._interval(within)
        return DistanceThreshold(float(distance), accepted / self.n, low, high, is_enough(low, high))

    def _interval(self, within: int) -> tuple[float, float]:
        """The interval of the rate at the `within`-th kept distance; 0: just below the first."""
        if not self.effective:
            return 0.0, 1.0
        pairs = self.effective[max(within - 1, 0)]
        return clopper_pearson(self.counts[within - 1] / self.n * pairs if within else 0.0, pairs)


def threshold_for_fmr(impostor_distances: Distances, fmr: float, people: Ids | None = None) -> DistanceThreshold:
    """Find the exact threshold for a false-match rate from all of these (n,) impostor distances.

    people: (n, 2) numbers of the two people of each pair; None: no two pairs share a person
    Raises TooFewPairs, NotFinite, WrongShape.
    """
    return ImpostorDistances.of(impostor_distances, people, keep=4 * len(impostor_distances)).threshold(fmr)


def require_finite(distances: Distances) -> Distances:
    """Return (n,) distances as float64. Raises NotFinite."""
    if not np.isfinite(distances).all():
        raise NotFinite("a distance")
    return np.asarray(distances, np.float64)
