"""Decisions at a rate of strangers named, and their differences."""

import numpy as np
import pytest

from ml.distances import EUCLIDEAN
from ml.errors import WrongShape
from ml.evaluation.comparisons.decisions import (
    SearchDistances,
    compare_named_rightly,
    decide_searches,
    rate_named_rightly,
)
from ml.evaluation.identification import Probes, fnir
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.indexes.flat import FlatIndex


def searches(people: int, distance: float, seed: int = 0, photos: int = 2) -> SearchDistances:
    """Own distances about 1, others' about `apart`; every fifth person is enrolled once only."""
    draw = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(people), photos).astype(np.float64)
    own = np.abs(1 + 0.3 * draw.normal(size=len(numbers)) + 0.2 * draw.normal(size=people).repeat(photos))
    other = np.abs(distance + 0.3 * draw.normal(size=len(numbers)))
    return SearchDistances(np.where(numbers % 5 == 0, np.inf, own), other, numbers)


def test_the_threshold_names_the_allowed_share_of_strangers() -> None:
    distances = SearchDistances(np.array([0.5, 2.5, 1.5, np.inf]), np.array([1.0, 3.0, 2.0, 4.0]), np.arange(4.0))
    right = decide_searches(distances, fpir=0.25).named_rightly  # one of four strangers may be named: the limit is 2
    assert right[:3].tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(right[3])
    assert decide_searches(distances, fpir=0.0).named_rightly[:3].tolist() == [1.0, 0.0, 0.0]
    assert decide_searches(distances, fpir=1.0).named_rightly[:3].tolist() == [1.0, 1.0, 1.0]


def test_a_search_that_names_another_person_is_not_right() -> None:
    distances = SearchDistances(np.array([1.0, 0.2]), np.array([0.9, 5.0]), np.arange(2.0))
    assert decide_searches(distances, fpir=1.0).named_rightly.tolist() == [0.0, 1.0]


def test_the_rate_named_rightly_is_one_minus_fnir_at_the_same_fpir() -> None:
    distances = searches(200, 2.0)
    probes = Probes(
        distances.own,
        distances.other,
        distances.people,
        distances.people,
        ranks=np.where(distances.own < distances.other, 1, 2),
    )
    [missed] = fnir([probes], [0.01], within=1)
    assert np.nanmean(decide_searches(distances).named_rightly) == pytest.approx(1 - missed.value)
    rate = rate_named_rightly(distances)
    assert (rate.value, rate.low, rate.high) == pytest.approx((1 - missed.value, 1 - missed.high, 1 - missed.low))


def test_the_share_of_strangers_named_is_of_other_peoples_thresholds() -> None:
    rates = [decide_searches(searches(500, 2.0, seed)).stranger_named.mean() for seed in range(20)]
    assert np.mean(rates) == pytest.approx(0.01, abs=0.003)
    assert np.std(rates) > 0, "at the threshold of all searches it would be 1 % each time"


def test_the_interval_of_a_difference_covers_it() -> None:
    truth = np.nanmean(decide_searches(searches(20_000, 2.3, 99)).named_rightly) - np.nanmean(
        decide_searches(searches(20_000, 2.0, 98)).named_rightly
    )
    differences = [
        compare_named_rightly(searches(150, 2.0, s), searches(150, 2.3, 1000 + s)).difference for s in range(40)
    ]
    covered = [f.low <= truth <= f.high for f in differences]
    assert np.mean(covered) >= 0.85
    assert all(f.low <= f.value <= f.high for f in differences)


def test_a_decision_rule_decides_a_search_as_the_service_does() -> None:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(120), 3)
    rows = draw.standard_normal((120, 16))[people] + 0.5 * draw.standard_normal((360, 16))
    rows, nobody = rows.astype(np.float32), draw.standard_normal((50, 16)).astype(np.float32)
    queries = np.arange(0, 360, 2)
    distances = SearchDistances.by_rule(rows, people, nobody, queries, EUCLIDEAN)
    rule = DecisionRule()
    index = FlatIndex(16)
    index.add(np.arange(410), np.concatenate([rows, nobody]))
    gallery = GalleryPeople.from_rows(np.arange(410), np.append(people, np.full(50, -1)), np.arange(410) >= 360)
    expected = search_gallery(index, gallery, queries, rule)
    assert (distances.is_first == np.isfinite(expected.mate)).all()
    np.testing.assert_allclose(distances.own[distances.is_first], expected.mate[distances.is_first])
    np.testing.assert_allclose(distances.other, expected.stranger)
    assert decide_searches(distances, 0.05).named_rightly.mean() > 0.9
    once = SearchDistances.by_rule(rows[::3], people[::3], nobody, np.arange(5), EUCLIDEAN)
    assert not once.enrolled.any()


def test_a_comparison_without_searches_is_refused() -> None:
    with pytest.raises(WrongShape):
        decide_searches(SearchDistances(np.empty(0), np.empty(0), np.empty(0)))
    alone = SearchDistances(np.array([np.inf, np.inf]), np.array([1.0, 2.0]), np.zeros(2))
    assert np.isnan(rate_named_rightly(alone).value)
