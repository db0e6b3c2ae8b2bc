"""How near the nearest people of a search come as the gallery grows, and whom the decision rule names then.

Let F(x) be the share of people within the distance x of one search, where x is counted from the distance of the face
to itself. In a gallery that is c times as large, the nearest person lies where F was c times smaller. Going down by a
factor of e in F multiplies the distance by exp(-s). For the k-th nearest of n independent people, k ln(x(k+1) / x(k))
has the mean s, so s is measured at each rank, from searches that share no distribution but its shape. It falls slowly
towards the first rank (by a Weibull tail it would not fall): 1 / s is a line in the logarithm of the rank, which is
extended beyond the first rank. All nearest distances of a search are multiplied by the same factor.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import TooFewPairs
from ml.identification.person_distance import DecisionRule
from ml.identification.rival_lists import RivalLists

Floats = NDArray[np.float64]

FIRST_RANK, LAST_RANK, MIN_RANKS = 2, 29, 8
"""The ranks that the scale is measured at. The first is left out: some people are enrolled under two names."""
MIN_SEARCHES_PER_RANK = 20


@dataclass(frozen=True)
class TailScale:
    """The scale of the logarithm of a search's smallest distances: 1 / s = inverse + rise * ln(growth)."""

    inverse: float
    rise: float

    @classmethod
    def fit(cls, lists: RivalLists, weights: Floats | None = None) -> Self:
        """Fit the scale. weights: (S,) of the searches, by default `lists.weights`. Raises TooFewPairs."""
        weights = lists.weights if weights is None else weights
        ranks = np.arange(FIRST_RANK, min(LAST_RANK, lists.distances.shape[1] - 1) + 1)
        nearer, further = lists.distances[:, ranks - 1], lists.distances[:, ranks]
        is_known = np.isfinite(further)
        with np.errstate(invalid="ignore"):
            spacings = np.where(is_known, ranks * np.log(further / nearer), 0.0)
        total = weights @ is_known
        usable = (total > 0) & (is_known.sum(0) >= MIN_SEARCHES_PER_RANK)
        if usable.sum() < MIN_RANKS:
            raise TooFewPairs("people that searches find", FIRST_RANK + MIN_RANKS, FIRST_RANK + int(usable.sum()))
        scales = (weights @ spacings)[usable] / total[usable]
        rise, inverse = np.polyfit(-np.log(ranks[usable]), 1 / np.maximum(scales, 1e-9), 1)
        if rise <= 0 or inverse <= 0:
            return cls(float(1 / max(scales.mean(), 1e-9)), 0.0)
        return cls(float(inverse), float(rise))

    def shrink(self, growth: float) -> float:
        """Return the factor of the nearest distances in a gallery that is `growth` (1 or more) times as large."""
        logarithm = float(np.log(growth))
        if self.rise < 1e-9:
            return float(np.exp(-logarithm / self.inverse))
        return float((1 + self.rise / self.inverse * logarithm) ** (-1 / self.rise))


def find_naming_factors(lists: RivalLists, distance: float, rule: DecisionRule) -> Floats:
    """Return (S,) the largest factor of its distances at which each stranger's search names somebody.

    -inf if no factor does, +inf if all do. distance: the threshold of the person distance
    """
    leads = score_first(lists, rule)
    limits = distance - lists.offsets
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(leads > 0, limits / leads, np.where(limits >= 0, np.inf, -np.inf))
    return np.where(lists.first_is_named & np.isfinite(lists.distances[:, 0]), factors, -np.inf)


def find_losing_factors(lists: RivalLists, distance: float, rule: DecisionRule) -> Floats:
    """Return (S,) the smallest factor of its rivals' distances at which each search finds its own person.

    -inf if all factors do, +inf if none does.
    """
    nearest = _find_rival_limits(lists, distance, rule)
    first = lists.distances[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(nearest <= 0, -np.inf, np.where(np.isfinite(first), nearest / first, -np.inf))


def measure_named(lists: RivalLists, distance: float, rule: DecisionRule, fraction: float) -> Floats:
    """Return (S,) the probability that each stranger's search names somebody.

    fraction: the probability, 0..1, that a rival is in a smaller gallery. The result is the mean over all smaller
    galleries; those without two rivals on the list, or whose second is nearer than the lead needs, count as not naming.
    """
    nearest, limit = lists.distances, (distance - lists.offsets)[:, None]
    named = lists.is_named[lists.people] & np.isfinite(nearest)
    size = nearest.shape[1]
    if not rule.margin_weight:
        chances = fraction * (1 - fraction) ** np.arange(size)
        return np.asarray(np.where(named & (nearest <= limit), chances, 0.0).sum(1))
    needed = ((1 + rule.margin_weight) * nearest - limit) / rule.margin_weight
    total = np.zeros(len(nearest))
    for rank in range(size):
        too_near = (nearest[:, rank + 1 :] < needed[:, rank, None]).sum(1)
        is_next_listed = too_near < size - rank - 1
        chances = fraction * (1 - fraction) ** (rank + too_near)
        total += np.where(named[:, rank] & is_next_listed, chances, 0.0)
    return total


def measure_found(lists: RivalLists, distance: float, rule: DecisionRule, fraction: float) -> Floats:
    """Return (S,) the probability that each search finds its own person; `fraction` as in `measure_named`."""
    limits = _find_rival_limits(lists, distance, rule)
    too_near = (lists.distances < limits[:, None]).sum(1)
    return np.asarray(np.where(np.isfinite(limits), (1 - fraction) ** too_near, 0.0))


def score_first(lists: RivalLists, rule: DecisionRule) -> Floats:
    """Return the (S,) person distances of the nearest rivals, without the offsets; +inf if there is none."""
    first, second = lists.distances[:, 0], lists.distances[:, 1]
    with np.errstate(invalid="ignore"):
        lead = np.where(np.isfinite(second), second - first, 0.0)
    return np.asarray(first - rule.margin_weight * lead)


def _find_rival_limits(lists: RivalLists, distance: float, rule: DecisionRule) -> Floats:
    """Return (S,) the distance that the nearest rival must have, so that the own person is named; +inf if none will."""
    own, limit = lists.own, distance - lists.offsets
    if not rule.margin_weight:
        return np.where(own <= limit, own, np.inf)
    with np.errstate(invalid="ignore"):
        needed = ((1 + rule.margin_weight) * own - limit) / rule.margin_weight
    return np.where(np.isfinite(own), np.maximum(own, needed), np.inf)
