"""Open-set decisions: person distances, searches for strangers, and thresholds for a rate of strangers named."""

import json
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from ml.calibration import ImpostorDistances, sample_impostors
from ml.calibration.rate_intervals import clopper_pearson
from ml.distances import EUCLIDEAN, INNER_PRODUCT
from ml.errors import Corrupt, TooFewPairs, WrongShape
from ml.identification import searches as gallery_searches
from ml.identification.nearness_shift import NearnessShift
from ml.identification.open_set import (
    NameCounts,
    OpenSetCalibration,
    PersonThreshold,
    possible_fpir,
)
from ml.identification.person_distance import NEAREST_FACE, DecisionRule, Shortlist, find_nearest_people, shortlist
from ml.identification.searches import MAX_OWN_FACES, GalleryPeople, TemplateCache, search_gallery
from ml.identification.stranger_searches import StrangerSearches, fpir_at_size
from ml.identification.tail_fit import TailFit
from ml.identification.templates import PersonTemplate, template_distances
from ml.indexes.base import Neighbours
from ml.indexes.flat import FlatIndex
from ml.types import Ids, Rows


def everybody(count: int) -> np.ndarray:
    return np.ones(count, np.bool_)


def test_a_person_distance_weighs_the_nearest_face_the_template_and_the_lead() -> None:
    rule = DecisionRule(template_weight=0.5, margin_weight=0.5)
    base = rule.base_distances(np.array([1.0, 3.0]), np.array([2.0, 5.0]))
    assert base.tolist() == [1.5, 4.0]
    assert rule.person_distances(base, everybody(2)).tolist() == [1.5 - 0.5 * 2.5, 4.0 + 0.5 * 2.5]


def test_the_order_of_people_is_that_of_their_base_distances() -> None:
    base = np.random.default_rng(0).exponential(size=(50, 6))
    scored = DecisionRule(0.5, 0.8).person_distances(base, np.ones(base.shape, np.bool_))
    assert (scored.argsort(1) == base.argsort(1)).all()


def test_somebody_alone_has_no_lead() -> None:
    rule = DecisionRule(0, 0.5)
    assert rule.person_distances(np.array([2.0]), everybody(1)).tolist() == [2.0]
    assert rule.person_distances(np.array([2.0, np.inf]), np.array([True, False])).tolist() == [2.0, np.inf]
    assert rule.person_distances(np.empty((3, 0)), np.empty((3, 0), np.bool_)).shape == (3, 0)


def test_a_face_without_a_name_takes_nobody_s_lead() -> None:
    rule, base = DecisionRule(0, 0.5), np.array([1.0, 1.1, 3.0])
    with_nameless = rule.person_distances(base, np.array([True, False, True]))
    assert with_nameless[0] == 1.0 - 0.5 * 2.0
    assert with_nameless[1] == pytest.approx(1.1 + 0.5 * 0.1)


def test_rivals_must_be_given_for_everybody() -> None:
    with pytest.raises(WrongShape, match="is_rival"):
        DecisionRule().person_distances(np.zeros(3), everybody(2))


def test_a_shortlist_names_each_person_once_by_the_nearest_face() -> None:
    near = shortlist(np.array([[4, -1, 4, 2, 7]]), np.array([[0.1, 0.2, 0.3, 0.4, 0.5]], np.float32), size=4)
    assert near.people.tolist() == [[4, 2, 7, -1]]
    assert near.nearest[0].tolist() == pytest.approx([0.1, 0.4, 0.5, np.inf])


def test_the_nearest_person_of_a_shortlist_is_never_a_nameless_face_or_an_empty_entry() -> None:
    near = Shortlist(np.array([[2, 0, 1], [2, -1, -1]]), np.array([[0.1, 0.4, 0.5], [0.1, np.inf, np.inf]]))
    is_rival = np.array([True, True, False])
    distances, nearest = find_nearest_people(near, near.nearest, is_rival, NEAREST_FACE)
    assert (distances[0], nearest[0]) == (0.4, 0)
    assert distances[1] == np.inf


def crowd(people: int, photos: int, seed: int = 0, spread: float = 0.35) -> tuple[Rows, Ids]:
    """Draw unit rows: people are directions in 32 dimensions, photos lie around them."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((people, 32)).repeat(photos, axis=0)
    rows = centres + spread * draw.standard_normal(centres.shape) * draw.uniform(0.5, 2, (len(centres), 1))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), np.arange(people).repeat(photos)


def gallery(rows: Rows, owners: Ids, distractors: int = 0) -> tuple[FlatIndex, GalleryPeople]:
    index = FlatIndex(rows.shape[1])
    ids = 10 * np.arange(len(rows))
    index.add(ids, rows)
    return index, GalleryPeople.from_rows(ids, owners, np.arange(len(rows)) >= len(rows) - distractors)


def brute_force(rows: Rows, owners: Ids, position: int, rule: DecisionRule, *, own: bool) -> float:
    """Compute the nearest person distance with loops: without the probe's person, or without its face alone."""
    scores = {}
    for person in set(owners.tolist()):
        faces = [i for i in np.flatnonzero(owners == person) if i != position]
        if not faces or (not own and person == owners[position]):
            continue
        squared_distances = ((rows[faces].astype(float) - rows[position]) ** 2).sum(1)
        template = ((rows[faces].astype(float).mean(0) - rows[position]) ** 2).sum()
        scores[person] = (1 - rule.template_weight) * squared_distances.min() + rule.template_weight * template
    order = sorted(scores, key=scores.__getitem__)
    if own and order[0] != owners[position]:
        return np.inf
    return float(scores[order[0]] - rule.margin_weight * (scores[order[1]] - scores[order[0]]))


@pytest.mark.parametrize("rule", [NEAREST_FACE, DecisionRule(0.75, 0.5), DecisionRule(1, 0)])
def test_searches_leave_out_the_person_or_the_face(rule: DecisionRule) -> None:
    rows, owners = crowd(9, 4, spread=0.8)
    index, people = gallery(rows, owners)
    searches = search_gallery(index, people, np.arange(len(rows)), rule)
    for position in range(len(rows)):
        assert searches.stranger[position] == pytest.approx(
            brute_force(rows, owners, position, rule, own=False), rel=1e-4
        )
        assert searches.mate[position] == pytest.approx(brute_force(rows, owners, position, rule, own=True), rel=1e-4)


@pytest.mark.parametrize("photos", [130, MAX_OWN_FACES + 1])
def test_a_search_goes_on_until_it_knows_the_next_people(photos: int) -> None:
    """The nearest faces are all of one person, and their number is far beyond what a search looks at first."""
    rows, owners = crowd(14, photos, spread=0.2)
    index, people = gallery(rows, owners)
    probes = np.arange(5, len(rows), 61)
    searches = search_gallery(index, people, probes, DecisionRule())
    for position, stranger, mate in zip(probes.tolist(), searches.stranger, searches.mate, strict=True):
        assert stranger == pytest.approx(brute_force(rows, owners, position, DecisionRule(), own=False), rel=1e-4)
        assert mate == pytest.approx(brute_force(rows, owners, position, DecisionRule(), own=True), rel=1e-4)


class ShrinkingIndex(FlatIndex):
    """Loses one of the faces from `gone_from` on at each search, as a service's index does while people are deleted."""

    gone_from = 0

    def search(self, *args: Any, **options: Any) -> Neighbours:
        ids = self.ids()
        self.remove(ids[ids >= self.gone_from][:1])
        return super().search(*args, **options)


def test_a_measurement_leaves_out_faces_that_are_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_searches, "MAX_BATCH_SEARCHES", 8)
    (rows, owners), (far, more) = crowd(40, 2), crowd(30, 2, seed=1)
    rows, owners = np.concatenate([rows, far + np.float32(9)]), np.concatenate([owners, more + 40])
    whole, people = gallery(rows, owners)
    index = ShrinkingIndex(rows.shape[1], EUCLIDEAN)
    index.add(people.ids, rows)
    index.gone_from = int(people.ids[80])
    positions = np.concatenate([np.arange(80, 140), np.arange(80)])
    found = search_gallery(index, people, positions, DecisionRule())
    expected = search_gallery(whole, people, positions, DecisionRule())
    assert found.positions[-80:].tolist() == list(range(80))
    np.testing.assert_array_equal(found.stranger[-80:], expected.stranger[-80:])
    np.testing.assert_array_equal(found.mate[-80:], expected.mate[-80:])
    assert 90 < len(found.positions) < 140
    assert np.isfinite(found.stranger).all()


def test_a_search_that_fails_though_nothing_was_removed_is_an_error() -> None:
    rows, owners = crowd(9, 4)
    index, people = gallery(rows, owners)
    cache = TemplateCache(index, people)
    with pytest.raises(WrongShape, match="ids"):
        cache.without_removed()


def test_a_search_of_few_people_ends() -> None:
    rows, owners = crowd(2, 300, spread=0.2)
    index, people = gallery(rows, owners)
    searches = search_gallery(index, people, np.array([0, 400]), DecisionRule())
    expected = [brute_force(rows, owners, position, NEAREST_FACE, own=True) for position in (0, 400)]
    assert np.isfinite(expected).all()
    assert np.isfinite(searches.stranger).all()
    assert np.isfinite(searches.mate).all()


def test_inner_products_of_unit_rows_are_scored_as_their_distances_are() -> None:
    rows, owners = crowd(30, 4)
    queries = crowd(30, 1, seed=5)[0]
    templates = [PersonTemplate.from_rows(rows[owners == person]) for person in range(30)]
    squared = template_distances(EUCLIDEAN, queries, templates)
    product = template_distances(INNER_PRODUCT, queries, templates)
    np.testing.assert_allclose(2 + 2 * product, squared, atol=1e-5)


def test_a_distractor_that_is_nearest_means_nobody_is_named() -> None:
    rows, owners = crowd(6, 2)
    twin = rows[0] + np.float32(0.01)
    index, people = gallery(np.concatenate([rows, twin[None]]), np.append(owners, -1), distractors=1)
    searches = search_gallery(index, people, np.array([0, 2]), DecisionRule())
    assert searches.stranger[0] == np.inf
    assert np.isfinite(searches.stranger[1])


def test_faces_without_a_name_hide_nobody_from_a_measurement() -> None:
    """However many there are: those of the probe's own person, as of a video, lie around no stranger."""
    rows, owners = crowd(20, 1)
    frames = rows[0] + np.random.default_rng(4).normal(0, 0.02, (900, rows.shape[1])).astype(np.float32)
    index, people = gallery(np.concatenate([rows, frames]), np.append(owners, np.full(900, -1)))
    searches = search_gallery(index, people, np.array([0]), DecisionRule())
    assert searches.stranger[0] == pytest.approx(brute_force(rows, owners, 0, DecisionRule(), own=False), rel=1e-4)


def test_one_of_each_person_is_sampled_before_a_second_of_anybody() -> None:
    owners = np.array([0] * 50 + [1, 2, 3, 3])
    people = GalleryPeople.from_rows(np.arange(54), owners, np.zeros(54, np.bool_))
    for seed in range(5):
        places = people.sample(people.is_named, 4, np.random.default_rng(seed))
        assert sorted(owners[places]) == [0, 1, 2, 3]
    assert len(people.sample(people.is_named, 99, np.random.default_rng(0))) == 54


def test_people_with_many_faces_stand_for_strangers_too() -> None:
    """Forty of a poorer camera, with a video each, beside 160 others: 21 % of strangers were named at 5 %."""
    good, poor = crowd(160 + 480, 1)[0], 0.4 * crowd(40, MAX_OWN_FACES + 1, seed=2)[0] + np.float32(0.5)
    owners = np.concatenate([np.arange(160), 160 + np.arange(40).repeat(MAX_OWN_FACES + 1)])
    rows = np.concatenate([good[:160], poor])
    calibration = calibrated(rows, owners, DecisionRule())[0]
    others = np.concatenate([good[160:], 0.4 * crowd(120, 1, seed=3)[0] + np.float32(0.5)])
    threshold = calibration.threshold(0.05, len(rows))
    assert threshold is not None
    named = strangers_named(rows, owners, others, DecisionRule()) <= threshold.person_distance
    assert named.mean() < threshold.high


def calibrated(rows: Rows, owners: Ids, rule: DecisionRule) -> tuple[OpenSetCalibration, FlatIndex, GalleryPeople]:
    index, people = gallery(rows, owners)
    searches = search_gallery(index, people, people.sample(people.is_named, 3000, np.random.default_rng(0)), rule)
    strangers = StrangerSearches.from_distances("leave-one-out", searches.stranger, searches.owners, len(rows))
    return OpenSetCalibration(rule, (strangers,)), index, people


def strangers_named(rows: Rows, owners: Ids, strangers: Rows, rule: DecisionRule) -> np.ndarray:
    """Return the person distances of searches for people who are not in the gallery."""
    squared_distances = EUCLIDEAN.distances(strangers, rows).astype(float)
    people = np.unique(owners)
    nearest = np.stack([squared_distances[:, owners == person].min(1) for person in people], 1)
    means = np.stack([rows[owners == person].mean(0) for person in people])
    base = rule.base_distances(nearest, EUCLIDEAN.distances(strangers, means).astype(float))
    return rule.person_distances(base, np.ones(base.shape, np.bool_)).min(1)


def test_a_search_that_may_miss_the_next_person_decides_by_the_nearest_face() -> None:
    rows, owners = crowd(400, 3)
    calibration = calibrated(rows, owners, DecisionRule())[0]
    pairs = (ImpostorDistances.of(sample_impostors(rows, owners, 50_000, 0)),)
    threshold = calibration.pairs_threshold(0.01, len(rows), pairs)
    assert threshold is not None
    assert (threshold.enough, threshold.source, threshold.rule) == (False, "pairs", NEAREST_FACE)
    assert calibration.pairs_threshold(0.01, len(rows), ()) is None
    with pytest.raises(WrongShape, match="fpir"):
        calibration.pairs_threshold(0, len(rows), pairs)


@pytest.mark.parametrize("rule", [NEAREST_FACE, DecisionRule()])
def test_the_threshold_names_as_many_strangers_as_were_asked_for(rule: DecisionRule) -> None:
    rows, owners = crowd(600, 3, seed=1)
    calibration = calibrated(rows, owners, rule)[0]
    others = strangers_named(rows, owners, crowd(4000, 1, seed=101)[0], rule)
    for fpir in (0.01, 0.05, 0.2):
        threshold = calibration.threshold(fpir, len(rows))
        assert threshold is not None
        assert threshold.enough
        assert threshold.low < (others <= threshold.person_distance).mean() < threshold.high
        assert threshold.low < fpir < threshold.high
        assert threshold.possible_distance >= threshold.person_distance


def test_the_template_and_the_lead_name_more_people_at_the_same_rate() -> None:
    rows, owners = crowd(400, 4, spread=0.7)
    named = {}
    for rule in (NEAREST_FACE, DecisionRule()):
        calibration, index, people = calibrated(rows, owners, rule)
        searches = search_gallery(index, people, np.arange(len(rows)), rule)
        named[rule] = (searches.mate <= calibration.threshold(0.01, len(rows)).person_distance).mean()
    assert named[DecisionRule()] > named[NEAREST_FACE] + 0.02


def test_a_threshold_follows_the_size_of_the_gallery() -> None:
    small_rows, small_owners = crowd(500, 3)
    calibration = calibrated(small_rows, small_owners, NEAREST_FACE)[0]
    rows, owners = crowd(2000, 3)
    others = strangers_named(rows, owners, crowd(3000, 1, seed=1)[0], NEAREST_FACE)
    rate = (others <= calibration.threshold(0.1, len(rows)).person_distance).mean()
    assert 0.05 < rate < 0.15
    unchanged = (others <= calibration.threshold(0.1, len(small_rows)).person_distance).mean()
    assert unchanged > 0.25, "four times the faces, about four times the false alarms"
    assert fpir_at_size(0.01, 100, 400) == pytest.approx(1 - 0.99**4)


@pytest.mark.parametrize(("measured", "now"), [(1000, 530), (400, 1600)])
def test_the_stated_interval_holds_the_rate_of_a_gallery_that_has_changed_its_size(measured: int, now: int) -> None:
    """With half of the people, strangers have a larger lead: some 80 % as many are named, not half as many."""
    rows, owners = crowd(max(measured, now), 2)
    calibration = calibrated(rows[owners < measured], owners[owners < measured], DecisionRule())[0]
    changed = owners < now
    others = strangers_named(rows[changed], owners[changed], crowd(6000, 1, seed=100)[0], DecisionRule())
    for fpir in (0.05, 0.1, 0.3):
        threshold = calibration.threshold(fpir, int(changed.sum()))
        rate = (others <= threshold.person_distance).mean()
        assert threshold.low < rate < min(threshold.high, 1.1 * fpir)


def test_searches_for_one_stranger_are_worth_less_than_those_for_many() -> None:
    draw = np.random.default_rng(0)
    alike = np.repeat(draw.standard_normal(200), 10)
    one_each = StrangerSearches.from_distances("leave-one-out", draw.standard_normal(2000), np.arange(2000), 100)
    ten_each = StrangerSearches.from_distances("leave-one-out", alike, np.arange(200).repeat(10), 100)
    for share in (0.01, 0.1):
        (_, *narrow), (_, *wide) = one_each.threshold(share), ten_each.threshold(share)
        assert np.log(wide[1] / wide[0]) > 1.8 * np.log(narrow[1] / narrow[0])


def test_few_strangers_fall_back_to_pairs_on_the_safe_side() -> None:
    rows, owners = crowd(60, 3)
    calibration = calibrated(rows, owners, DecisionRule())[0]
    pairs = ImpostorDistances.of(sample_impostors(rows, owners, 100_000, 0))
    others = strangers_named(rows, owners, crowd(4000, 1, seed=1)[0], NEAREST_FACE)
    for fpir in (0.01, 0.001):
        threshold = calibration.threshold(fpir, len(rows), (pairs,))
        assert threshold is not None
        assert (threshold.enough, threshold.source, threshold.low) == (False, "pairs", None)
        assert threshold.rule == NEAREST_FACE
        assert threshold.more_people >= 150 - 60
        assert (others <= threshold.person_distance).mean() <= fpir
    cautious = OpenSetCalibration(DecisionRule(), (), optimistic=True).threshold(0.01, len(rows), (pairs,))
    assert cautious.person_distance < calibration.threshold(0.01, len(rows), (pairs,)).person_distance


def test_strangers_match_faces_without_a_name_no_more_often_than_stated() -> None:
    rows, owners = crowd(400, 3)
    calibration = calibrated(rows, owners, DecisionRule())[0]
    pairs = ImpostorDistances.of(sample_impostors(rows, owners, 400_000, 0))
    photos, others = crowd(4000, 2, seed=2)[0], crowd(2000, 1, seed=3)[0]
    nameless, second = photos[::2], photos[1::2]
    nearest = EUCLIDEAN.distances(others, nameless).min(1)
    for fpir in (0.01, 0.05):
        threshold = calibration.threshold(
            fpir, len(rows) + len(nameless), (pairs,), NameCounts(len(rows), len(nameless))
        )
        assert threshold is not None
        assert threshold.enough
        assert (nearest <= threshold.nameless_distance).mean() <= fpir
        assert (nearest <= threshold.nameless_possible_distance).mean() <= possible_fpir(fpir)
        mates = ((second - nameless) ** 2).sum(1)
        assert (mates <= threshold.nameless_distance).mean() > 0.5, "it is no limit that nothing passes"


def test_few_near_pairs_beside_many_far_ones_are_extrapolated_as_by_themselves() -> None:
    """The nearest of the few was taken for the nearest of all: 7 % of strangers matched a nameless face at 1 %."""
    draw = np.random.default_rng(0)
    near, far = (ImpostorDistances.of(draw.normal(mean, 1, n)) for mean, n in ((0, 4000), (3, 200_000)))
    distances = list[float]()
    for pairs in (near, far.join_strictest(near), near.join_strictest(far)):
        threshold = OpenSetCalibration(NEAREST_FACE).pairs_threshold(0.01, 1000, (pairs,))
        assert threshold is not None
        distances.append(threshold.person_distance)
    assert distances == pytest.approx([distances[0]] * 3, abs=0.05)
    assert distances[0] < min(near.distances) - 0.5


def test_the_fewer_faces_have_no_name_the_farther_they_match() -> None:
    rows, owners = crowd(400, 3)
    calibration = calibrated(rows, owners, DecisionRule())[0]
    pairs = ImpostorDistances.of(sample_impostors(rows, owners, 100_000, 0))
    limits = [
        calibration.threshold(0.01, 5000, (pairs,), NameCounts(5000, count)).nameless_distance
        for count in (10, 1000, 5000)
    ]
    assert limits[0] > limits[1] > limits[2]
    assert limits[2] == calibration.threshold(0.01, 5000, (pairs,)).nameless_distance, "not known: all may be"
    assert calibration.threshold(0.01, 5000).nameless_distance == -np.inf, "no pairs were measured"
    by_pairs = OpenSetCalibration(DecisionRule()).threshold(0.01, 5000, (pairs,), NameCounts(4990, 10))
    assert by_pairs.nameless_distance == by_pairs.person_distance


@pytest.mark.parametrize("fpir", [5e-324, 1e-320, 1e-300])
def test_the_smallest_rates_have_a_finite_threshold(fpir: float) -> None:
    rows, owners = crowd(60, 3)
    pairs = ImpostorDistances.of(sample_impostors(rows, owners, 100_000, 0))
    for calibration in (calibrated(rows, owners, DecisionRule())[0], OpenSetCalibration(DecisionRule())):
        threshold = calibration.threshold(fpir, len(rows), (pairs,))
        assert threshold is not None
        assert np.isfinite([threshold.person_distance, threshold.possible_distance]).all()
        usual = calibration.threshold(1e-9, len(rows), (pairs,))
        assert usual is not None
        assert threshold.person_distance <= usual.person_distance


def test_of_several_sources_the_strictest_counts() -> None:
    near, far = (
        StrangerSearches.from_distances(source, np.linspace(low, low + 1, 1000), np.arange(1000), 500)
        for source, low in (("leave-one-out", 0.2), ("distractors", 0.5))
    )
    for both in ((near, far), (far, near)):
        threshold = OpenSetCalibration(NEAREST_FACE, both).threshold(0.01, 500)
        assert threshold.source == "leave-one-out"


def summarise(source: Any, people: int, mean: float, gallery: int = 500) -> StrangerSearches:
    """Summarise searches whose distances are normal, with a standard deviation of 1."""
    distances = np.random.default_rng(people).normal(mean, 1, people)
    return StrangerSearches.from_distances(source, distances, np.arange(people), gallery)


def compare(
    few: StrangerSearches, many: StrangerSearches, fpir: float
) -> tuple[PersonThreshold | None, PersonThreshold]:
    """Return the threshold by both, whatever their order, and that by the many alone."""
    thresholds = [OpenSetCalibration(NEAREST_FACE, s).threshold(fpir, 500) for s in ((few, many), (many, few), (many,))]
    assert thresholds[0] == thresholds[1]
    assert thresholds[2] is not None
    return thresholds[0], thresholds[2]


@pytest.mark.parametrize("fpir", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("people", [12, 30, 100])
def test_distractors_that_are_unlike_the_people_of_the_gallery_do_not_decide_alone(people: int, fpir: float) -> None:
    named, distractors = summarise("leave-one-out", people, 0), summarise("distractors", 2000, 1)
    assert OpenSetCalibration(NEAREST_FACE, (named,)).threshold(fpir, 500) is None, "too few people"
    threshold, alone = compare(named, distractors, fpir)
    assert threshold is not None
    assert threshold.enough == (people == 100 and fpir > 0.01), "otherwise it may be more than three times as high"
    assert threshold.more_people == (0 if threshold.enough else 150 - people)
    assert alone.high is not None
    assert ndtr(alone.person_distance) > 2 * alone.high, "so many strangers who are like the people are named by these"
    assert threshold.low is not None
    assert threshold.high is not None
    assert fpir / 5 < ndtr(threshold.person_distance) < min(3 * fpir, threshold.high)
    assert threshold.low < ndtr(threshold.person_distance - 1), "it holds for people who are like the distractors, too"


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_distractors_that_are_no_farther_than_the_people_of_the_gallery_decide_beside_few_of_these(mean: float) -> None:
    threshold, alone = compare(summarise("leave-one-out", 20, mean), summarise("distractors", 2000, 0), 0.01)
    assert threshold is not None
    assert threshold.source == "distractors"
    assert 0.003 < ndtr(threshold.person_distance) <= ndtr(alone.person_distance)
    assert threshold.low is not None
    assert threshold.high is not None
    assert alone.high is not None
    assert threshold.low < ndtr(threshold.person_distance - mean) < alone.high <= threshold.high


def test_the_more_people_there_are_the_surer_are_the_rates_beside_distractors() -> None:
    few, many = (
        compare(summarise("leave-one-out", n, 0), summarise("distractors", 2000, 0), 0.01)[0] for n in (12, 140)
    )
    assert few is not None
    assert many is not None
    assert few.high is not None
    assert many.high is not None
    assert few.high > 2 * many.high


@pytest.mark.parametrize("people", [8, 30, 100])
@pytest.mark.parametrize("seed", range(5))
def test_a_larger_rate_never_has_a_smaller_distance(people: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    searches = [
        StrangerSearches.from_distances(source, draw.gumbel(mean, 1, count), np.arange(count), 500)
        for source, mean, count in (("leave-one-out", 0.0, people), ("distractors", 0.8, 1000))
    ]
    calibration = OpenSetCalibration(NEAREST_FACE, tuple(searches))
    thresholds = [calibration.threshold(fpir, 500) for fpir in np.geomspace(0.003, 0.3, 40)]
    distances = [threshold.person_distance for threshold in thresholds if threshold]
    assert len(distances) > 30
    assert (np.diff(distances) >= 0).all()


def test_people_who_are_all_nearer_than_distractors_leave_the_threshold_to_pairs() -> None:
    people, distractors = summarise("leave-one-out", 20, -5), summarise("distractors", 2000, 0)
    pairs = ImpostorDistances.of(np.linspace(0, 1, 1000))
    threshold = OpenSetCalibration(NEAREST_FACE, (people, distractors)).threshold(0.01, 500, (pairs,))
    assert threshold is not None
    assert (threshold.enough, threshold.source) == (False, "pairs")
    assert compare(people, distractors, 0.01)[0] is None


def test_newcomers_who_are_unlike_those_of_the_training_do_not_decide_alone() -> None:
    held_out = summarise("held-out", 50, 0)
    threshold, alone = compare(held_out, summarise("leave-one-out", 2000, 1), 0.1)
    assert threshold is not None
    assert threshold.person_distance < alone.person_distance - 0.5


def test_people_held_out_before_the_gallery_grew_are_compared_at_its_size() -> None:
    """Of twice as many faces, strangers of one kind find one as near twice as often."""
    few, many = (summarise(source, 3000, 0, size) for source, size in (("held-out", 250), ("leave-one-out", 500)))
    shift = NearnessShift.between(many, few)
    assert shift is not None
    assert shift.expected == pytest.approx(ndtri(1 - 0.7**2) - ndtri(0.3), abs=0.05)
    back = NearnessShift.between(few, many)
    assert back is not None
    assert back.expected == pytest.approx(0, abs=0.05), "fewer people have a larger lead, so that nothing is given back"


@pytest.mark.parametrize("difference", [-0.5, 0.0, 0.8])
def test_a_shift_tells_the_rate_of_one_kind_of_strangers_from_that_of_another(difference: float) -> None:
    measured, others = summarise("distractors", 5000, 0), summarise("held-out", 200, -difference)
    shift = NearnessShift.between(measured, others)
    assert shift is not None
    assert shift.lowest < difference < shift.highest
    assert shift.expected == pytest.approx(difference, abs=0.2)
    assert shift.highest - shift.lowest == pytest.approx(2 * 1.96 * 1.3 / np.sqrt(200), rel=0.25)
    assert shift.find_measured_share(0.01) == pytest.approx(ndtr(ndtri(0.01) - max(0, shift.expected)))
    low, high = shift.interval(0.01, 0.01, 0.01)
    assert low < ndtr(ndtri(0.01) + difference) < high
    wider = shift.interval(0.01, 0.005, 0.02)
    assert wider[0] < low < high < wider[1]


def test_distractors_who_are_enrolled_too_do_not_tighten_the_threshold_of_many_people() -> None:
    people, twins = summarise("leave-one-out", 2000, 1), summarise("distractors", 20, 0)
    alone, both = (OpenSetCalibration(NEAREST_FACE, s).threshold(0.1, 500) for s in ((people,), (people, twins)))
    assert alone == both


@pytest.mark.parametrize("fpir", [0.01, 0.05])
def test_newcomers_who_come_nearer_than_people_held_out_count_by_their_share_of_the_people(fpir: float) -> None:
    searches = summarise("held-out", 2000, 1), summarise("leave-one-out", 100, 0)

    def mix(share: float) -> tuple[PersonThreshold, float]:
        threshold = OpenSetCalibration(NEAREST_FACE, searches, newcomer_share=share).threshold(fpir, 500)
        assert threshold is not None
        assert threshold.source == "held-out"
        return threshold, float(
            (1 - share) * ndtr(threshold.person_distance - 1) + share * ndtr(threshold.person_distance)
        )

    (alone, _), (third, rate), (few, _) = mix(0.0), mix(0.35), mix(0.001)
    assert None not in (alone.high, third.low, third.high, few.high)
    assert 0.35 * ndtr(alone.person_distance) > 1.5 * alone.high, "without them, more strangers are named than stated"  # type: ignore[operator]
    assert fpir / 3 < rate < 1.4 * fpir
    assert (alone.enough, few.enough, third.enough) == (True, True, True)
    assert third.low < rate < third.high  # type: ignore[operator]
    assert few.person_distance == pytest.approx(alone.person_distance, abs=0.01), (
        "a few newcomers among many change little"
    )
    assert few.high == pytest.approx(alone.high, rel=0.05)


def test_newcomers_who_stay_farther_than_people_held_out_do_not_loosen_the_threshold() -> None:
    searches = summarise("held-out", 2000, 0), summarise("leave-one-out", 100, 1)
    thresholds = [OpenSetCalibration(NEAREST_FACE, searches, newcomer_share=s).threshold(0.01, 500) for s in (0, 0.5)]
    assert None not in thresholds
    assert thresholds[0].person_distance == thresholds[1].person_distance  # type: ignore[union-attr]


@pytest.mark.parametrize("fpir", [0.01, 0.1, 0.3])
def test_the_interval_holds_for_the_people_who_are_left_of_a_training(fpir: float) -> None:
    """With 220 of 300 people of a poorer camera deleted, 40 % of strangers were named at a stated 36 %."""
    draw = np.random.default_rng(0)
    distances = np.concatenate([draw.normal(2, 1, 1200), draw.normal(0, 1, 800)])
    held_out = StrangerSearches.from_distances("held-out", distances, np.arange(2000), 1000)
    whole, left = (
        OpenSetCalibration(NEAREST_FACE, (held_out,), left_share=share).threshold(fpir, 500) for share in (1.0, 0.5)
    )
    assert whole is not None
    assert left is not None
    assert whole.high is not None
    assert left.high is not None
    of_left = 0.8 * ndtr(left.person_distance) + 0.2 * ndtr(left.person_distance - 2)
    assert of_left < left.high == min(1, 2 * whole.high)
    assert fpir < 0.3 or of_left > whole.high
    assert (left.person_distance, left.low) == (whole.person_distance, whole.low)


def test_the_evidence_is_not_enough_where_half_of_the_people_are_too_few_newcomers() -> None:
    searches = summarise("held-out", 200, 0), summarise("leave-one-out", 12, 0)
    threshold = OpenSetCalibration(NEAREST_FACE, searches, newcomer_share=0.5).threshold(0.01, 500)
    assert threshold is not None
    assert threshold.high is not None
    assert (threshold.enough, threshold.more_people, threshold.high > 0.03) == (False, 138, True)


def test_a_single_newcomer_among_many_people_decides_nothing() -> None:
    held_out, newcomer = (
        summarise("held-out", 2000, 0),
        StrangerSearches.from_distances("leave-one-out", np.array([-9.0]), np.array([0]), 500),
    )
    alone, both = (
        OpenSetCalibration(NEAREST_FACE, (held_out, newcomer), newcomer_share=share).threshold(0.01, 500)
        for share in (0.0, 1 / 2001)
    )
    assert alone is not None
    assert both is not None
    assert both.person_distance == pytest.approx(alone.person_distance, abs=0.01)
    assert both.high == pytest.approx(alone.high, abs=0.001)


def test_without_calibration_data_there_is_no_threshold() -> None:
    assert OpenSetCalibration(DecisionRule()).threshold(0.01, 10) is None
    few = ImpostorDistances.of(np.linspace(0, 1, 50))
    assert OpenSetCalibration(DecisionRule()).threshold(0.01, 10, (few,)) is None
    with pytest.raises(TooFewPairs):
        StrangerSearches.from_distances("distractors", np.empty(0), np.empty(0, np.int64), 10)
    for wrong in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(WrongShape, match="fpir"):
            OpenSetCalibration(DecisionRule()).threshold(wrong, 10)


def test_a_stranger_whom_a_distractor_answers_is_never_named() -> None:
    distances = np.full(1000, np.inf)
    distances[:3] = 0.5
    searches = StrangerSearches.from_distances("distractors", distances, np.arange(1000), 50)
    assert searches.shares == (0.001, 0.002, 0.003)
    assert searches.tail is None
    assert searches.threshold(0.01)[0] == 0.5
    assert not searches.is_enough(0.0001)


def test_the_interval_covers_the_true_rate_of_an_order_statistic() -> None:
    draw, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        kth = np.sort(draw.random(800))[7]  # its true rate is itself
        low, high = clopper_pearson(8, 800)
        covered += low <= kth <= high
    assert 0.93 < covered / 2000 < 0.975
    assert clopper_pearson(0.0, 100)[0] == 0


def test_a_fitted_tail_says_how_sure_it_is() -> None:
    """For exponential tails, the 95 % interval of a rare rate contains the true rate."""
    draw, covered, sizes = np.random.default_rng(0), [], []
    for _ in range(100):
        distances = np.log(draw.random(800))  # P(distance <= t) = exp(t)
        tail = TailFit.fit(distances, np.arange(800))
        assert tail is not None
        low, high = tail.interval(0.01)
        covered.append(low <= np.exp(tail.distance(0.01)) <= high)
        sizes.append(high / low)
    assert np.mean(covered) >= 0.9
    assert np.median(sizes) < 3.5
    assert TailFit.fit(np.log(draw.random(40)), np.arange(40)) is None


def test_people_enrolled_under_two_names_do_not_drag_the_threshold_down() -> None:
    draw = np.random.default_rng(0)
    strangers = 5 + np.log(draw.random(1000))
    mixed = np.where(draw.random(1000) < 0.01, draw.random(1000) - 9, strangers)
    people = np.arange(1000)
    clean, dirty = (StrangerSearches.from_distances("leave-one-out", d, people, 500) for d in (strangers, mixed))
    truth = 5 + np.log(0.01)
    assert clean.threshold(0.01)[0] == pytest.approx(truth, abs=0.4)
    assert dirty.threshold(0.01)[0] == pytest.approx(truth, abs=1.2)
    assert np.sort(mixed)[9] < truth - 4, "the order statistic"


def test_a_shrunken_gallery_is_not_trusted_with_more() -> None:
    searches = StrangerSearches.from_distances(
        "leave-one-out", np.log(np.linspace(0.001, 1, 999)), np.arange(999), 1000
    )
    calibration = OpenSetCalibration(NEAREST_FACE, (searches,))
    assert calibration.threshold(0.01, 200).person_distance == calibration.threshold(0.01, 1000).person_distance
    assert calibration.threshold(0.01, 3000).person_distance < calibration.threshold(0.01, 1000).person_distance


def test_a_lead_over_the_next_person_counts_only_among_about_as_many_people_as_were_measured() -> None:
    searches = StrangerSearches.from_distances(
        "leave-one-out", np.log(np.linspace(0.001, 1, 999)), np.arange(999), 1000
    )
    pairs = (ImpostorDistances.of(np.linspace(1, 2, 5000)),)
    calibration = OpenSetCalibration(DecisionRule(), (searches,))
    measured, shrunken = (calibration.threshold(0.01, faces, pairs) for faces in (500, 499))
    assert (measured.enough, measured.source, measured.rule) == (True, "leave-one-out", DecisionRule())
    assert (shrunken.enough, shrunken.source, shrunken.rule) == (False, "pairs", NEAREST_FACE)
    assert (shrunken.low, shrunken.high) == (None, None)


def test_a_shortlist_is_ten_times_as_loose_and_never_everybody() -> None:
    assert [possible_fpir(f) for f in (0.001, 0.01, 0.1, 0.5)] == [0.01, 0.1, 0.3, 0.5]


def test_a_calibration_survives_json() -> None:
    calibration = calibrated(*crowd(50, 2), DecisionRule())[0]
    assert OpenSetCalibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration
    with pytest.raises(Corrupt):
        OpenSetCalibration.from_dict({"rule": {"template_weight": 1}})


def test_the_rule_of_one_search_is_that_of_many() -> None:
    draw = np.random.default_rng(5)
    for _ in range(300):
        count = int(draw.integers(1, 11))
        nearest, template = draw.standard_normal((2, count)).round(int(draw.integers(1, 4)))
        is_rival = draw.random(count) < draw.random()
        rule = DecisionRule(*draw.choice([0.0, 0.25, 2 / 3, 1.0], 1), *draw.choice([0.0, 0.5, 0.75], 1))
        expected = rule.person_distances(rule.base_distances(nearest, template), is_rival)
        values = nearest.tolist(), template.tolist(), is_rival.tolist()
        assert rule.compute_person_distances(*values, [True] * count) == expected.tolist()


def test_a_person_who_may_not_lead_is_no_nearer_than_the_base_distance() -> None:
    rule, values = DecisionRule(0.0, 0.5), ([1.0, 3.0, 4.0], [1.0, 3.0, 4.0], [True] * 3)
    assert rule.compute_person_distances(*values, [True] * 3) == [0.0, 4.0, 5.5]
    assert rule.compute_person_distances(*values, [False] * 3) == [1.0, 4.0, 5.5]
