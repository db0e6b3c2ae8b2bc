"""Rates of a growing gallery: measured in parts of it, predicted for larger ones."""

import numpy as np
import pytest

from ml import indexes
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.errors import TooFewPairs
from ml.identification import searches
from ml.identification.gallery_growth import TailScale, measure_found, measure_named
from ml.identification.growth_forecast import GrowthForecast
from ml.identification.growth_measurement import GrowthSearches, check_forecast, draw_part, list_points
from ml.identification.growth_plot import draw_growth
from ml.identification.person_distance import NEAREST_FACE, DecisionRule
from ml.identification.rival_lists import RivalLists, read_rival_lists
from ml.identification.searches import GalleryPeople, search_gallery
from ml.indexes.base import Index

RULES = (DecisionRule(), NEAREST_FACE)
each_rule = pytest.mark.parametrize("rule", RULES, ids=("margin", "nearest face"))


def enrol(
    count: int, photos: int = 2, distractors: int = 0, seed: int = 0, metric: Distance = EUCLIDEAN
) -> tuple[Index, GalleryPeople]:
    """Enrol people with so many photos of unit length, in 24 dimensions, and distractors with one."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((count + distractors, 24))
    who = np.concatenate([np.arange(count).repeat(photos), count + np.arange(distractors)])
    rows = centres[who] + 0.5 * rng.standard_normal((len(who), 24))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    ids = np.arange(len(rows))
    people = GalleryPeople.from_rows(ids, np.where(who < count, who, -1), who >= count)
    return indexes.build(ids, rows, metric), people


def read_lists(index: Index, people: GalleryPeople, rule: DecisionRule) -> RivalLists:
    return read_rival_lists(index, people, np.arange(0, len(people.ids), 2), rule)


@each_rule
@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT], ids=lambda m: m.label)
def test_the_whole_gallery_decides_as_searches_do(rule: DecisionRule, metric: Distance) -> None:
    index, people = enrol(150, 3, 40, metric=metric)
    faces = np.arange(0, 450, 2)
    lists = read_rival_lists(index, people, faces, rule)
    outcomes = search_gallery(index, people, faces, rule)
    for distance in np.quantile(outcomes.stranger[np.isfinite(outcomes.stranger)], (0.02, 0.2, 0.6)):
        named, found = measure_named(lists, distance, rule, 1.0), measure_found(lists, distance, rule, 1.0)
        assert np.mean((named > 0.5) == (outcomes.stranger <= distance)) > 0.98
        assert np.mean((found > 0.5) == (outcomes.mate <= distance)) > 0.98


def test_people_with_many_faces_are_listed_as_those_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    index, people = enrol(150, 3, 40)
    lists = read_lists(index, people, DecisionRule())
    monkeypatch.setattr(searches, "MAX_OWN_FACES", 2)
    apart = read_lists(index, people, DecisionRule())
    assert (apart.people == lists.people).mean() > 0.99
    np.testing.assert_allclose(apart.distances, lists.distances, rtol=1e-4)


@each_rule
def test_parts_of_a_gallery_are_measured_as_the_mean_of_random_parts(rule: DecisionRule) -> None:
    index, people = enrol(200, 2, 60)
    lists = read_lists(index, people, rule)
    distance = float(np.quantile(GrowthForecast(lists, rule).person_distances(1.0), 0.2))
    rng, named, lost = np.random.default_rng(3), [], []
    for _ in range(300):
        part = lists.keep_rivals(rng.random(len(people.is_named)) < 0.5)
        named.append(measure_named(part, distance, rule, 1.0).mean())
        lost.append(measure_found(part, distance, rule, 1.0).mean())
    assert measure_named(lists, distance, rule, 0.5).mean() == pytest.approx(np.mean(named), abs=0.01)
    assert measure_found(lists, distance, rule, 0.5).mean() == pytest.approx(np.mean(lost), abs=0.01)


def test_the_scale_of_a_known_tail_is_recovered() -> None:
    """In a Weibull tail F(x) = x^8, the scale of the logarithm is 1/8 at all ranks."""
    rng = np.random.default_rng(0)
    distances = np.sort(rng.random((400, 3000)) ** (1 / 8), axis=1)[:, :64]
    people = np.zeros(distances.shape, np.int64)
    lists = RivalLists(np.arange(400), np.ones(1, np.bool_), np.zeros(400), people, distances, np.full(400, np.inf))
    assert TailScale.fit(lists).shrink(10) == pytest.approx(10 ** (-1 / 8), rel=0.03)


def test_a_tenth_predicts_the_whole() -> None:
    rule = DecisionRule()
    index, people = enrol(2000)
    whole = GrowthSearches.run(index, people, rule)
    inside = []
    for seed in range(3):
        part = draw_part(people, 0.1, seed)
        small = GrowthSearches.run(indexes.build(part.ids, index.rows(part.ids), EUCLIDEAN), part, rule)
        threshold = small.find_threshold(0.05)
        assert threshold is not None
        predicted = small.predict(threshold.person_distance, 10.0)
        measured = whole.measure(threshold.person_distance, 1.0)
        assert predicted.strangers_named is not None
        assert measured.strangers_named is not None
        assert predicted.people_found is not None
        assert measured.people_found is not None
        inside.append(predicted.strangers_named.low <= measured.strangers_named.value <= predicted.strangers_named.high)
        assert predicted.strangers_named.value == pytest.approx(measured.strangers_named.value, rel=0.5)
        assert predicted.people_found.value == pytest.approx(measured.people_found.value, abs=0.08)
    assert sum(inside) >= 2


def test_a_growing_gallery_names_more_strangers_and_finds_fewer_people() -> None:
    index, people = enrol(400, 2, 200)
    searches = GrowthSearches.run(index, people, DecisionRule())
    threshold = searches.find_threshold(0.05)
    assert threshold is not None
    points = list_points(searches, threshold.person_distance, 0.05)
    assert [p.factor for p in points] == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 5, 10, 20, 50, 100]
    assert [p.people for p in points if p.factor in (0.5, 1, 10)] == [200, 400, 4000]
    for name in ("strangers_named", "distractors_named"):
        shares = [getattr(p, name) for p in points]
        assert all(0 <= s.low <= s.value <= s.high <= 1 for s in shares)
        assert np.all(np.diff([s.value for s in shares[2:]]) >= -0.01)
    found = [p.people_found.value for p in points if p.people_found]
    assert np.all(np.diff(found) <= 0.01)
    kept = [p.kept_distance for p in points if p.kept_distance is not None]
    assert np.all(np.diff(kept) <= 1e-3)
    assert kept[-1] < threshold.person_distance
    widths = [p.strangers_named.high / p.strangers_named.low for p in points[5:] if p.strangers_named]
    assert widths[-1] > widths[0]


def test_the_threshold_that_keeps_the_rate_keeps_it() -> None:
    rule = DecisionRule()
    index, people = enrol(2000)
    part = draw_part(people, 0.1)
    small = GrowthSearches.run(indexes.build(part.ids, index.rows(part.ids), EUCLIDEAN), part, rule)
    kept = small.predict(0.0, 10.0, 0.05).kept_distance
    assert kept is not None
    named = GrowthSearches.run(index, people, rule).measure(kept, 1.0).strangers_named
    assert named is not None
    assert 0.025 < named.value < 0.1


def test_the_check_compares_a_tenth_with_the_whole() -> None:
    index, people = enrol(1200)
    searches = GrowthSearches.run(index, people, DecisionRule())
    check = check_forecast(index, searches, 0.4)
    assert check is not None
    assert (check.people, check.faces, check.distractors_named) == (120, 240, None)
    assert check.strangers_named is not None
    assert check.strangers_named[1] == searches.measure(0.4, 1.0).strangers_named
    index, people = enrol(500)
    assert check_forecast(index, GrowthSearches.run(index, people, DecisionRule()), 0.4) is None


def test_too_few_people_are_refused() -> None:
    for count, distractors in ((99, 0), (1, 0), (0, 300)):
        index, people = enrol(count, 2, distractors)
        with pytest.raises(TooFewPairs) as refused:
            GrowthSearches.run(index, people, DecisionRule())
        assert refused.value.missing == 100 - count


def test_no_stranger_named_still_has_an_upper_end() -> None:
    index, people = enrol(300)
    searches = GrowthSearches.run(index, people, DecisionRule())
    point, predicted = searches.measure(-5.0, 1.0), searches.predict(-5.0, 10.0)
    assert point.strangers_named is not None
    assert predicted.strangers_named is not None
    assert (point.strangers_named.value, point.strangers_named.low) == (0, 0)
    assert 0 < point.strangers_named.high < predicted.strangers_named.high < 0.2


def test_people_the_model_learned_from_do_not_stand_for_strangers() -> None:
    index, people = enrol(300, 1, 200)
    searches = GrowthSearches.run(index, people, DecisionRule(), has_learned=True)
    point = searches.predict(0.3, 2.0, 0.05)
    assert point.strangers_named is None
    assert point.distractors_named is not None
    assert point.people_found is None


def test_cancelling_stops_the_searches() -> None:
    index, people = enrol(300)

    def stop(done: int, total: int) -> None:
        if done:
            raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError):
        GrowthSearches.run(index, people, DecisionRule(), check=stop)


def test_the_plot_shows_measured_and_predicted_rates() -> None:
    share = {"value": 0.02, "low": 0.01, "high": 0.04}
    points = [
        {"faces": faces, "is_measured": faces <= 100, "strangers_named": share, "distractors_named": None,
         "people_found": share, "found_at_kept": None}
        for faces in (50, 100, 1000)
    ]  # fmt: skip
    svg = draw_growth(points, 0.01)
    assert svg.startswith("<svg")
    assert svg.count("<circle") == 4
    assert svg.count("<polygon") == 2
    assert "1,000" in svg
