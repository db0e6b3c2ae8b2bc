"""Carry a rate over from strangers who were measured to strangers of another kind, of whom few searches are known.

Photos of a better camera, say, lie nearer to each other. If the ranks of the distances of both kinds are those of
normal distributions that differ in their means alone, as in the binormal model of Dorfman and Alf (1969), then one
number tells all rates of one kind from those of the other. It is known from the nearest third, to which far fewer
searches belong than to a rate of 1 % would be needed.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from ml.calibration.rate_intervals import clopper_pearson
from ml.identification.stranger_searches import StrangerSearches, fpir_at_size

COMPARED_SHARE = 0.3
"""The share of the measured searches among which others are counted. Between it and 1 %, the shift grew by 0.0 to 0.2
standard deviations where distractors had noise of 0.3 to 1 times the spread of people added."""
MIN_SHARE = 1e-12


@dataclass(frozen=True)
class NearnessShift:
    """By how many standard deviations others come nearer than the measured strangers; below 0 if they stay farther.

    expected: the best estimate, drawn towards 0 where few were searched for; lowest, highest: its 95 % interval
    is_bounded: whether some of the others stay farther than the nearest third of the measured ones
    """

    expected: float
    lowest: float
    highest: float
    is_bounded: bool = True

    @classmethod
    def between(cls, measured: StrangerSearches, others: StrangerSearches) -> Self | None:
        """Count which share of the others comes as near as the nearest third; None if none can.

        Each person counts once, and half where people of one gallery find each other. Shares of others who were
        searched for in a smaller gallery are raised to the size of this one.
        """
        distance = measured.threshold(COMPARED_SHARE)[0]
        compared, share = measured.share_within(distance), others.share_within(distance)
        if compared <= 0:
            return None
        searches = others.people / 2 if others.source == "leave-one-out" else float(others.people)
        estimates = (share * searches + compared) / (searches + 1), *clopper_pearson(share * searches, searches)
        sizes = others.gallery_faces, measured.gallery_faces
        start = _deviate(compared)
        expected, lowest, highest = (_deviate(max(s, fpir_at_size(s, *sizes))) - start for s in estimates)
        return cls(expected, lowest, highest, share < 1)

    def find_measured_share(self, share: float, weight: float = 1.0) -> float:
        """Return the share of the measured strangers within the distance that a share (0..1) of a mixture reaches.

        weight: the share of the others in it. Where they come no nearer, the measured strangers decide.
        """
        nearer = max(0.0, self.expected)

        def exceed(deviate: float) -> float:
            return (1 - weight) * _share(deviate) + weight * _share(deviate + nearer) - share

        start = _deviate(share)
        return share if nearer == 0 else _share(scipy.optimize.brentq(exceed, start - nearer - 1e-9, start + 1e-9))

    def interval(self, share: float, low: float, high: float, weight: float = 1.0) -> tuple[float, float]:
        """Return the 95 % interval of the share of a mixture within a distance.

        share, low, high: the share of the measured strangers within it, and its interval
        weight: the share of the others in the mixture
        """
        at = _deviate(share)
        expected = at + self.expected
        down = np.hypot(at - _deviate(low), self.expected - self.lowest)
        up = np.hypot(_deviate(high) - at, self.highest - self.expected)
        ends = (low, expected - float(down)), (high, expected + float(up))
        lowest, highest = ((1 - weight) * of_measured + weight * _share(of_others) for of_measured, of_others in ends)
        return lowest, highest


def _deviate(share: float) -> float:
    return float(scipy.special.ndtri(min(max(share, MIN_SHARE), 1 - MIN_SHARE)))


def _share(deviate: float) -> float:
    return float(scipy.special.ndtr(deviate))
