"""Distances are carried over to another embedding by what becomes of the distances of the same faces."""

import numpy as np
import pytest

from ml.calibration import DistanceMap, ImpostorDistances
from ml.identification.stranger_searches import StrangerSearches
from ml.identification.tail_fit import HIGH_SHARE, LOW_SHARE

RNG = np.random.default_rng(0)
SEEN = RNG.normal(10.0, 1.0, 2_000)


def fit(before: np.ndarray, after: np.ndarray) -> DistanceMap:
    fitted = DistanceMap.fit(before, after)
    assert fitted is not None
    return fitted


def test_distances_become_what_those_of_their_rank_become() -> None:
    carried = fit(SEEN, RNG.permutation(SEEN) ** 2 / 20).apply(np.array([8.5, 10.0, 11.5]))
    assert carried == pytest.approx(np.array([8.5, 10.0, 11.5]) ** 2 / 20, rel=0.01)


def test_nothing_changes_where_no_distance_does() -> None:
    distances = np.array([-2.0, 1.0, 9.0, 10.0, 20.0, np.inf])
    assert fit(SEEN, SEEN).apply(distances) == pytest.approx(distances)


@pytest.mark.parametrize(("factor", "shift"), [(0.5, 0.0), (2.0, 0.0), (1.0, -4.0), (1.0, 4.0)])
def test_a_distance_nearer_than_all_that_were_seen_keeps_its_difference_or_its_ratio(
    factor: float, shift: float
) -> None:
    """Whichever makes a stranger nearer."""
    carried = fit(SEEN, SEEN * factor + shift)
    first, first_after, nearer = carried.before[0], carried.after[0], 3.0
    expected = min(first_after - first + nearer, nearer * first_after / first)
    assert carried.apply(np.array([nearer]))[0] == pytest.approx(expected)


def test_rising_distances_stay_so() -> None:
    carried = fit(SEEN, RNG.permutation(SEEN) * 0.3 + 2.0).apply(np.linspace(0.0, 20.0, 500))
    assert (np.diff(carried) >= 0).all()


def test_too_few_distances_tell_nothing() -> None:
    found_nobody = np.full(1_000, np.inf)
    assert DistanceMap.fit(SEEN[:40], SEEN[:40]) is None
    assert DistanceMap.fit(np.r_[SEEN[:40], found_nobody], np.r_[SEEN[:40], found_nobody]) is None


def test_searches_for_strangers_and_their_tail_are_carried_over() -> None:
    distances, people = RNG.normal(10.0, 1.0, 3_000), np.arange(3_000)
    searches = StrangerSearches.from_distances("held-out", distances, people, 500)
    carried = searches.carried_over(fit(SEEN, SEEN - 4.0))
    measured = StrangerSearches.from_distances("held-out", distances - 4.0, people, 500)
    for share in (0.005, 0.01, LOW_SHARE, 0.1, HIGH_SHARE, 0.5):
        assert carried.threshold(share) == pytest.approx(measured.threshold(share), rel=0.01)


def test_a_tail_that_another_embedding_makes_flat_is_dropped() -> None:
    searches = StrangerSearches.from_distances("held-out", RNG.normal(10.0, 1.0, 500), np.arange(500), 500)
    assert searches.carried_over(DistanceMap((0.0, 20.0), (5.0, 5.0))).tail is None


def test_pairs_are_carried_over() -> None:
    pairs = RNG.normal(10.0, 1.0, 50_000)
    carried = ImpostorDistances.of(pairs).carried_over(fit(pairs, pairs - 4.0))
    for fmr in (0.001, 0.01, 0.1):
        measured = ImpostorDistances.of(pairs - 4.0).threshold(fmr)
        threshold = carried.threshold(fmr)
        assert (threshold.fmr, threshold.distance) == pytest.approx((measured.fmr, measured.distance), abs=0.02)
