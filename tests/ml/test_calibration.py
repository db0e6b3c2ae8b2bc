"""Scores mean what they say, thresholds keep the false-match rate, and thin evidence is called thin."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from ml.calibration import (
    Calibration,
    ImpostorDistances,
    choose_faces,
    draw_impostor_pairs,
    draw_pairs_with,
    sample_genuine,
    sample_impostors,
    threshold_for_fmr,
)
from ml.calibration.rate_intervals import clopper_pearson
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.errors import Corrupt, NotFinite, TooFewPairs, WrongShape


def two_kinds(seed: int, genuine: int = 2000, impostor: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    """Two normal distributions of one width, for which the logistic is the truth."""
    rng = np.random.default_rng(seed)
    return rng.normal(2, 1, genuine), rng.normal(5, 1, impostor)


@pytest.mark.parametrize("seed", range(3))
def test_the_probability_is_the_true_one_where_the_truth_is_known(seed: int) -> None:
    calibration = Calibration.fit(*two_kinds(seed, 20_000, 50_000))
    distance = np.linspace(2, 5, 13)
    truth = 1 / (1 + np.exp(3 * (distance - 3.5)))  # of normals at 2 and 5, as likely before
    np.testing.assert_allclose(calibration.probability(distance), truth, atol=0.03)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("flip", [False, True], ids=["learned", "worse than nothing"])
def test_similarity_falls_strictly_with_the_distance(seed: int, flip: bool) -> None:
    near, far = two_kinds(seed, 50, 50)
    calibration = Calibration.fit(far, near) if flip else Calibration.fit(near, far)
    similarity = calibration.similarity(np.sort(np.random.default_rng(seed).uniform(-3, 10, 200)))
    assert (np.diff(similarity) < 0).all()
    assert similarity.min() >= 0
    assert similarity.max() <= 100


def test_few_pairs_that_part_cleanly_are_not_believed_too_much() -> None:
    few = Calibration.fit(np.array([1.0, 1.1, 1.2, 0.9, 1.0]), np.array([5.0, 5.2, 4.8, 5.1, 4.9]))
    assert 0.7 < few.probability(np.array([1.0]))[0] < 0.95
    assert 0.05 < few.probability(np.array([5.0]))[0] < 0.3


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [-1.0, 0.0])
def test_the_unit_of_the_distance_does_not_matter(scale: float, shift: float) -> None:
    near, far = two_kinds(0, 500, 500)
    plain = Calibration.fit(near, far).probability(near)
    scaled = Calibration.fit((near + shift) * scale, (far + shift) * scale)
    np.testing.assert_allclose(scaled.probability((near + shift) * scale), plain, atol=1e-3)


def test_more_impostors_than_genuine_pairs_change_no_prior() -> None:
    near, far = two_kinds(1, 1000, 1000)
    even = Calibration.fit(near, far).probability(near)
    np.testing.assert_allclose(Calibration.fit(near, np.tile(far, 50)).probability(near), even, atol=0.01)


def test_equal_distances_on_both_sides_say_one_half() -> None:
    same = Calibration.fit(np.full(10, 3.0), np.full(10, 3.0))
    assert same.probability(np.array([3.0]))[0] == pytest.approx(0.5, abs=1e-6)


def test_the_distance_of_a_similarity_is_its_inverse() -> None:
    calibration = Calibration.fit(*two_kinds(0))
    for similarity in (0.5, 50, 80, 99.9):
        back = calibration.similarity(np.array([calibration.distance(similarity)]))
        assert back[0] == pytest.approx(similarity)
    assert calibration.distance(0) == np.inf
    assert calibration.distance(100) == -np.inf


@pytest.mark.parametrize(("genuine", "impostor", "missing"), [(4, 100, 1), (100, 0, 5)])
def test_too_few_pairs_to_calibrate_says_how_many_are_missing(genuine: int, impostor: int, missing: int) -> None:
    with pytest.raises(TooFewPairs) as caught:
        Calibration.fit(np.ones(genuine), np.ones(impostor))
    assert caught.value.missing == missing


def test_a_distance_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(NotFinite):
        Calibration.fit(np.array([1.0] * 9 + [np.nan]), np.ones(10))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fmr", [1e-4, 1e-3, 0.01, 0.3, 1.0])
def test_a_threshold_takes_no_more_impostors_than_asked_and_no_fewer_than_it_must(seed: int, fmr: float) -> None:
    distances = np.random.default_rng(seed).normal(size=5000).round(2)
    threshold = threshold_for_fmr(distances, fmr)
    taken = (distances <= threshold.distance).sum()
    assert taken / 5000 == threshold.fmr <= fmr
    following = distances[distances > threshold.distance]
    assert not len(following) or (distances <= following.min()).mean() > fmr
    assert threshold.low <= threshold.fmr <= threshold.high


def test_evidence_is_enough_where_the_ends_are_within_a_factor_of_three() -> None:
    distances = np.random.default_rng(0).normal(size=10_000)
    assert threshold_for_fmr(distances, 0.0015).enough
    assert not threshold_for_fmr(distances, 0.0014).enough
    none = threshold_for_fmr(distances, 1e-5)
    assert none.fmr == 0
    assert none.high == pytest.approx(3.69 / 10_000, rel=0.01)


@pytest.mark.parametrize("fmr", [0, -0.1, 1.1, float("nan")])
def test_a_rate_that_is_none_is_refused(fmr: float) -> None:
    with pytest.raises(WrongShape, match="fmr"):
        threshold_for_fmr(np.ones(5), fmr)


def test_no_impostors_at_all_give_no_threshold() -> None:
    with pytest.raises(TooFewPairs):
        threshold_for_fmr(np.empty(0), 0.1)


def test_the_same_distances_say_less_where_few_people_share_them() -> None:
    draw = np.random.default_rng(0)
    means, people = draw.normal(size=40), draw.integers(0, 40, (20_000, 2))
    people = people[people[:, 0] != people[:, 1]]
    distances = means[people].sum(1) + draw.normal(size=len(people))
    shared, per_pair = threshold_for_fmr(distances, 0.01, people), threshold_for_fmr(distances, 0.01)
    assert shared.distance == per_pair.distance
    assert shared.fmr == per_pair.fmr
    assert shared.high / shared.low > 2 * per_pair.high / per_pair.low
    assert per_pair.enough
    assert not shared.enough


def test_a_stored_calibration_keeps_the_intervals_of_any_rate() -> None:
    draw = np.random.default_rng(1)
    people = draw.integers(0, 300, (50_000, 2))
    people = people[people[:, 0] != people[:, 1]]
    distances = draw.normal(size=300)[people].sum(1) + draw.normal(size=len(people))
    kept = Calibration.from_dict(
        json.loads(json.dumps(Calibration.fit(distances[:500] - 4, distances, people).to_dict()))
    )
    for rate in (0.1, 0.01, 1e-3):
        exact, stored = threshold_for_fmr(distances, rate, people), kept.threshold(rate)
        assert (stored.low, stored.high) == pytest.approx((exact.low, exact.high), rel=0.1)


def test_of_what_an_older_version_stored_no_interval_is_known() -> None:
    old = Calibration.fit(*two_kinds(0)).to_dict()
    del old["impostors"]["effective"]
    threshold = Calibration.from_dict(json.loads(json.dumps(old))).threshold(0.01)
    assert threshold.fmr == pytest.approx(0.01)
    assert (threshold.low, threshold.high, threshold.enough) == (0.0, 1.0, False)


def test_effective_numbers_of_other_distances_are_corrupt() -> None:
    kept = Calibration.fit(*two_kinds(0)).to_dict()
    kept["impostors"]["effective"] = kept["impostors"]["effective"][1:]
    with pytest.raises(Corrupt, match="effective"):
        Calibration.from_dict(kept)


@pytest.mark.parametrize(("errors", "n"), [(0, 50), (3, 50), (30, 10_000), (50, 50)])
def test_the_interval_is_where_a_tail_of_the_binomial_is_two_and_a_half_percent(errors: int, n: int) -> None:
    low, high = clopper_pearson(errors, n)
    assert low == 0 or binom.sf(errors - 1, n, low) == pytest.approx(0.025)
    assert high == 1 or binom.cdf(errors, n, high) == pytest.approx(0.025)


def test_a_few_hundred_quantiles_stand_for_a_million_impostors() -> None:
    distances = np.random.default_rng(0).gamma(9, size=1_000_000)
    kept = ImpostorDistances.of(distances)
    assert len(kept.distances) <= 500
    for fmr in (1e-5, 1e-4, 1e-3, 1e-2, 0.1):
        threshold = kept.threshold(fmr)
        assert (distances <= threshold.distance).mean() == threshold.fmr
        assert 0.94 * fmr <= threshold.fmr <= fmr
    probes = np.quantile(distances, [1e-4, 1e-3, 0.2, 0.9])
    np.testing.assert_allclose(kept.fmr(probes), [1e-4, 1e-3, 0.2, 0.9], rtol=0.03)


def test_an_estimated_false_match_rate_is_never_nothing_and_rises_with_the_distance() -> None:
    kept = ImpostorDistances.of(np.random.default_rng(0).normal(size=999))
    rates = kept.fmr(np.linspace(-9, 9, 100))
    assert rates[0] == 1 / 1000
    assert rates[-1] == 1
    assert (np.diff(rates) >= 0).all()


def test_a_calibration_goes_through_json_unchanged() -> None:
    calibration = Calibration.fit(*two_kinds(0))
    assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration


@pytest.mark.parametrize("kept", [{}, {"slope": 1, "intercept": "x", "impostors": {}}, {"slope": 1}])
def test_what_is_no_calibration_is_corrupt(kept: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        Calibration.from_dict(kept)


@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT])
def test_sampled_pairs_are_of_the_kind_asked_and_none_comes_twice(metric: Distance) -> None:
    rng = np.random.default_rng(0)
    people = rng.integers(-1, 6, 60)
    rows = (people[:, None] * 100 + rng.normal(size=(60, 3))).astype(np.float32)
    near = sample_genuine(rows, people, 300, 1)
    far = sample_impostors(rows, people, 300, 1)
    assert len(np.unique(near)) == len(near) > 50
    assert len(np.unique(far)) == len(far) == 300
    assert near.max() < 100 < far.min()
    other = sample_impostors(rows, people, 300, 1, metric)
    assert (other < 0).any() == (metric == INNER_PRODUCT)


@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT])
@pytest.mark.parametrize(("faces", "dim"), [(40, 2000), (400, 3)], ids=["each with each", "pair by pair"])
def test_sampled_distances_are_those_of_the_pairs(faces: int, dim: int, metric: Distance) -> None:
    rng = np.random.default_rng(2)
    rows = (rng.normal(size=(faces, dim)) + 3).astype(np.float32)  # far from zero, and near each other
    people, exact = np.arange(faces), rows.astype(np.float64)
    all_distances = -(exact @ exact.T) if metric == INNER_PRODUCT else ((exact[:, None] - exact[None]) ** 2).sum(-1)
    possible = np.sort(all_distances[np.triu_indices(faces, 1)])
    impostors = np.sort(sample_impostors(rows, people, 500, 0, metric))
    nearest = possible[np.abs(possible[:, None] - impostors).argmin(axis=0)]
    assert len(impostors) == 500
    np.testing.assert_allclose(impostors, nearest, rtol=2e-6, atol=1e-9)
    assert len(np.unique(nearest)) == 500


def test_one_person_with_most_photos_does_not_stand_for_all() -> None:
    people = np.concatenate([np.zeros(1000, np.int64), np.repeat(np.arange(1, 101), 2)])
    rows = np.random.default_rng(0).normal(size=(1200, 2)).astype(np.float32)
    rows[:1000] += 1000 * np.arange(1000)[:, None]  # only the first person's photos lie far apart
    assert (sample_genuine(rows, people, 200, 0) > 1000).mean() < 0.1


def test_drawn_pairs_are_places_of_different_known_people() -> None:
    people = np.random.default_rng(3).integers(-1, 6, 60)
    pairs = draw_impostor_pairs(people, 400, 1)
    assert len(np.unique(pairs, axis=0)) == len(pairs) == 400
    assert (people[pairs] >= 0).all()
    assert (people[pairs[:, 0]] != people[pairs[:, 1]]).all()
    assert draw_impostor_pairs(np.full(4, -1), 5, 0).shape == (0, 2)


def test_of_one_person_ten_faces_at_most_are_in_impostor_pairs() -> None:
    people = np.concatenate([np.zeros(1000, np.int64), np.repeat(np.arange(1, 101), 2), np.full(50, -1)])
    pairs = draw_impostor_pairs(people, 5000, 0)
    of_first = pairs[people[pairs] == 0]
    assert len(pairs) == 5000
    assert len(np.unique(of_first)) == 10
    assert (people[pairs] == 0).any(1).mean() < 0.12
    chosen = choose_faces(people, np.random.default_rng(0), limit=1)
    assert people[chosen].tolist() == list(range(101))


@pytest.mark.parametrize("n", [1_000, 100_000], ids=["sparse", "all"])
def test_chosen_people_meet_each_other_and_the_others_by_their_share(n: int) -> None:
    people, is_chosen = np.r_[np.arange(200), -1], np.r_[np.arange(200) < 50, False]
    pairs = draw_pairs_with(is_chosen, people, n, 0)
    assert len(pairs) == min(n, 50 * 199)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert is_chosen[pairs[:, 0]].all()
    assert (people[pairs] >= 0).all()
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert is_chosen[pairs[:, 1]].mean() == pytest.approx(49 / 199, abs=0.04)
    assert draw_pairs_with(is_chosen[::-1], np.full(201, -1), n, 0).shape == (0, 2)


def test_samples_of_nobody_are_empty() -> None:
    rows, nobody = np.ones((4, 2), np.float32), np.full(4, -1)
    assert sample_genuine(rows, nobody, 5, 0).shape == sample_impostors(rows, nobody, 5, 0).shape == (0,)
    assert sample_genuine(rows, np.arange(4), 5, 0).shape == (0,)


def test_the_spread_of_strangers_is_their_standard_deviation_where_they_are_normal() -> None:
    draw = np.random.default_rng(0)
    assert ImpostorDistances.of(draw.normal(50, 3, 100_000)).spread == pytest.approx(3, rel=0.02)
    assert ImpostorDistances.of(np.full(100, 7.0)).spread == 0


def test_of_two_samples_the_one_with_more_near_pairs_counts_at_each_distance() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(5, 1, 4000), rng.normal(6, 2, 2000)
    one, other = (ImpostorDistances.of(sample, keep=4000) for sample in (narrow, wide))
    joined = one.join_strictest(other)
    for rate in (0.001, 0.01, 0.1, 0.5):
        expected = min(one.threshold(rate).distance, other.threshold(rate).distance)
        assert joined.threshold(rate).distance == pytest.approx(expected, rel=0.01)
    near, far = joined.threshold(0.01), joined.threshold(0.7)
    assert (near.low, near.high) == pytest.approx(clopper_pearson(20, 2000), rel=0.1), "few pairs tell this rate"
    assert (far.low, far.high) == pytest.approx(clopper_pearson(2800, 4000), rel=0.1)
    unknown = ImpostorDistances(one.n, one.distances, one.counts)
    assert unknown.join_strictest(other).threshold(0.01).enough is False


def test_only_a_difference_beyond_chance_makes_a_distribution_exceed_another() -> None:
    draw = np.random.default_rng(0)
    known, same = (ImpostorDistances.of(draw.normal(5, 1, 20_000)) for _ in range(2))
    nearer, small = ImpostorDistances.of(draw.normal(4, 1, 20_000)), ImpostorDistances.of(draw.normal(4.8, 1, 20))
    assert nearer.surely_exceeds(known)
    assert not known.surely_exceeds(nearer)
    assert not same.surely_exceeds(known)
    assert not small.surely_exceeds(known)
    assert not replace(nearer, effective=()).surely_exceeds(known)
