"""The results of searches for people who are not enrolled, in one gallery."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration.distance_map import DistanceMap
from ml.calibration.rate_intervals import clopper_pearson
from ml.errors import Corrupt, TooFewPairs
from ml.identification.tail_fit import LOW_SHARE, TailFit

Floats = NDArray[np.float64]
Source = Literal["leave-one-out", "held-out", "distractors"]

MIN_STRANGERS = 150.0
"""Independent searches for strangers that a threshold needs."""
MAX_INTERVAL_RATIO = 10.0
"""If the ends of the rate's interval have a larger ratio, the evidence is not enough."""
KEPT_DISTANCES = 400


def fpir_at_size(fpir: float, measured_faces: int, faces: int) -> float:
    """Convert FPIR to another gallery size, if every face is equally likely to match: 1 - (1 - fpir)^(N / N0)."""
    return -math.expm1(faces / max(1, measured_faces) * math.log1p(-min(fpir, 1 - 1e-12)))


@dataclass(frozen=True)
class StrangerSearches:
    """The results of searches for strangers in one gallery.

    source: who the strangers are; people, searches: their numbers; gallery_faces: faces in the gallery
    distances: person distances of the nearest named person, rising
    shares: for each distance, the share of searches that come at least as near; every stranger weighs alike
    effective: for each share, the effective number of independent searches
    tail: the fitted tail, used for small rates; None if there are too few searches for a fit
    """

    source: Source
    people: int
    searches: int
    gallery_faces: int
    distances: tuple[float, ...]
    shares: tuple[float, ...]
    effective: tuple[float, ...]
    tail: TailFit | None = None

    @classmethod
    def from_distances(cls, source: Source, distances: Floats, people: NDArray[np.int64], gallery_faces: int) -> Self:
        """Summarise the (S,) person distances of searches for (S,) strangers; +inf if no named person was found.

        Several searches for one stranger depend on each other. Their effective number is p(1 - p) over the variance of
        the share between strangers; it is at least the number of strangers and at most that of searches.
        Raises TooFewPairs if there is no search.
        """
        if not len(distances):
            raise TooFewPairs("searches for strangers", 1, 0)
        numbers, own, counts = np.unique(people, return_inverse=True, return_counts=True)
        order = np.argsort(distances, kind="stable")
        weights = 1.0 / (counts[own[order]] * len(numbers))
        ordered = distances[order]
        shares = np.minimum(np.cumsum(weights), 1.0)
        finite = int(np.isfinite(ordered).sum())
        ranks = np.unique(np.concatenate([np.arange(min(finite, 200)), np.geomspace(1, finite, KEPT_DISTANCES) - 1])
                           .astype(np.int64)) if finite else np.empty(0, np.int64)  # fmt: skip
        effective = [_effective(shares[rank], own[order[: rank + 1]], counts, len(distances)) for rank in ranks]
        return cls(
            source,
            len(numbers),
            len(distances),
            gallery_faces,
            tuple(ordered[ranks].tolist()),
            tuple(shares[ranks].tolist()),
            tuple(effective),
            TailFit.fit(distances, people),
        )

    def threshold(self, share: float) -> tuple[float, float, float]:
        """Return the distance up to which a share (0..1) of searches comes, and the 95 % interval of the true share.

        Small shares are taken from the fitted tail, others from the order statistic: the largest distance that at most
        this share of searches reaches. No share has a larger distance than a larger one.
        """
        if self.tail is not None and share < LOW_SHARE:
            distance = min(self.tail.distance(share), self.threshold(LOW_SHARE)[0])
            return distance, *self.tail.interval(share)
        within = int(np.searchsorted(self.shares, share + 1e-12, side="right"))
        if not within:
            nearest = self.distances[0] if self.distances else np.inf
            effective = self.effective[0] if self.effective else float(self.people)
            return float(np.nextafter(nearest, -np.inf)), *clopper_pearson(0.0, effective)
        searches = self.effective[within - 1]
        reached = clopper_pearson(self.shares[within - 1] * searches, searches)
        return self.distances[within - 1], *reached

    def is_enough(self, share: float) -> bool:
        """Whether there are enough searches for a threshold at this share."""
        _, low, high = self.threshold(share)
        return self.people >= MIN_STRANGERS and low > 0 and high <= MAX_INTERVAL_RATIO * low

    def can_estimate(self, share: float) -> bool:
        """Whether a threshold at this share is more than the nearest search, though it may be uncertain."""
        return share * self.people >= 1 or self.tail is not None

    def least_share_within(self, distance: float) -> float:
        """Return what the true share of searches up to this distance surely exceeds: the lower end of its interval."""
        return self._interval_within(distance)[0]

    def greatest_share_within(self, distance: float) -> float:
        """Return what the true share of searches up to this distance surely does not exceed."""
        return self._interval_within(distance)[1]

    def _interval_within(self, distance: float) -> tuple[float, float]:
        """Return the 95 % interval of the true share of searches up to this distance."""
        within = int(np.searchsorted(self.distances, distance, side="right"))
        if not within:
            return clopper_pearson(0.0, float(self.people))
        searches = self.effective[within - 1]
        return clopper_pearson(self.shares[within - 1] * searches, searches)

    def missing_people(self, share: float) -> int:
        """Estimate how many more strangers would be needed for a threshold at this share."""
        _, low, high = self.threshold(share)
        wider = np.log(high / low) / np.log(MAX_INTERVAL_RATIO) if 0 < low < high else 2.0
        return max(1, math.ceil(max(MIN_STRANGERS, self.people * max(1.0, float(wider)) ** 2)) - self.people)

    def share_within(self, distance: float) -> float:
        """Return the share of searches whose distance is at most `distance`."""
        within = int(np.searchsorted(self.distances, distance, side="right"))
        return self.shares[within - 1] if within else 0.0

    def carried_over(self, distances: DistanceMap) -> Self:
        """Return the same searches in another embedding."""
        carried = distances.apply(np.array(self.distances))
        tail = self.tail and self.tail.carried_over(distances)
        return replace(self, distances=tuple(carried.tolist()), tail=tail)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """Restore what `asdict` returned, through JSON or not. Raises Corrupt."""
        try:
            tail = kept["tail"]
            return cls(
                kept["source"], int(kept["people"]), int(kept["searches"]), int(kept["gallery_faces"]),
                tuple(kept["distances"]), tuple(kept["shares"]), tuple(kept["effective"]),
                tail and TailFit(float(tail["intercept"]), float(tail["slope"]), tuple(tail["covariance"])),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"these are not searches for strangers: {error}") from error


def _effective(share: float, alarms: NDArray[np.int64], counts: NDArray[np.int64], searches: int) -> float:
    """Return the effective number of searches for a share. alarms: the stranger of each search within the distance."""
    rates = np.bincount(alarms, minlength=len(counts)) / counts
    variance = float(rates.var()) / max(1, len(counts) - 1)
    if variance <= 0 or not 0 < share < 1:
        return float(len(counts))
    return float(np.clip(share * (1 - share) / variance, min(len(counts), searches), searches))
