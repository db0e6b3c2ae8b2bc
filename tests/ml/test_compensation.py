"""Source compensation: what it moves, what it leaves alone, and when it is switched off."""

import numpy as np
import pytest

from ml.compensation import (
    MIN_FACES_TO_CORRECT,
    NO_SOURCE,
    SourceCompensation,
    Sources,
    fit_compensation,
    judge_compensation,
)
from ml.compensation.fit import MAX_SPREAD_DIM, limit_sources
from ml.compensation.guess import Discriminant
from ml.compensation.judgement import LARGE_SHIFT, MIN_PEOPLE_TO_JUDGE
from ml.distances import EUCLIDEAN
from ml.errors import Corrupt
from ml.types import Ids, Rows

DIM, PEOPLE = 24, 60


def scale_to_unit_length(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def draw_gallery(shift: float, masked_people: int = PEOPLE, seed: int = 0) -> tuple[Rows, Sources, Ids]:
    """Three photos of each person without a source, and one masked photo of some of them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(PEOPLE, DIM))
    people = np.concatenate([np.repeat(np.arange(PEOPLE), 3), np.arange(masked_people)])
    sources = np.array([NO_SOURCE] * (3 * PEOPLE) + ["masked"] * masked_people)
    noise = rng.normal(0, 0.5, (len(people), DIM))
    direction = rng.normal(size=DIM) / np.sqrt(DIM)
    rows = centres[people] + noise + shift * direction * (sources == "masked")[:, None]
    return scale_to_unit_length(rows), sources, people


def test_the_reference_and_unknown_sources_do_not_move() -> None:
    rows, sources, _ = draw_gallery(5.0)
    compensation = fit_compensation(rows, sources)
    assert compensation.reference == NO_SOURCE
    corrected = compensation.apply(rows, sources)
    clean = sources == NO_SOURCE
    assert np.array_equal(corrected[clean], rows[clean])
    assert not np.array_equal(corrected[~clean], rows[~clean])
    assert np.array_equal(compensation.apply(rows, np.full(len(rows), "new-camera")), rows)


def test_the_mean_of_a_large_source_moves_to_the_reference() -> None:
    rows, sources, people = draw_gallery(5.0)
    compensation = fit_compensation(rows, sources)
    corrected = compensation.apply(rows, sources)
    masked = sources == "masked"
    before, after = (float(np.linalg.norm(one[masked].mean(0) - rows[~masked].mean(0))) for one in (rows, corrected))
    assert after < 0.3 * before
    assert np.allclose(np.linalg.norm(corrected, axis=1), 1, atol=1e-5)
    assert len(people) == len(rows)


def test_rows_of_any_length_stay_of_any_length() -> None:
    rows, sources, _ = draw_gallery(5.0)
    compensation = fit_compensation(3 * rows, sources)
    assert not compensation.has_unit_length
    lengths = np.linalg.norm(compensation.apply(3 * rows, sources)[sources == "masked"], axis=1)
    assert lengths.std() > 0.05


def test_the_order_and_the_batch_of_rows_do_not_matter() -> None:
    rows, sources, _ = draw_gallery(5.0)
    compensation = fit_compensation(rows, sources)
    corrected = compensation.apply(rows, sources)
    again = fit_compensation(rows[::-1], sources[::-1])
    assert np.allclose(again.apply(rows, sources), corrected, atol=1e-6)
    alone = np.concatenate([compensation.apply(rows[i : i + 1], sources[i : i + 1]) for i in range(len(rows))])
    assert np.allclose(alone, corrected, atol=1e-6)


def test_a_turned_space_is_compensated_alike() -> None:
    """The corrections depend on distances only, not on the axes."""
    rows, sources, _ = draw_gallery(5.0)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0].astype(np.float32)
    corrected = fit_compensation(rows, sources).apply(rows, sources)
    turned = fit_compensation(rows @ turn, sources).apply(rows @ turn, sources)
    assert np.allclose(turned, corrected @ turn, atol=1e-4)


def test_a_young_source_moves_less() -> None:
    rows, sources, _ = draw_gallery(5.0)
    moved = []
    for faces in (MIN_FACES_TO_CORRECT, 20, PEOPLE):
        kept = np.concatenate([np.flatnonzero(sources == NO_SOURCE), np.flatnonzero(sources == "masked")[:faces]])
        correction = fit_compensation(rows[kept], sources[kept]).corrections["masked"]
        own = rows[kept][sources[kept] == "masked"].mean(0)
        reference = rows[sources == NO_SOURCE].mean(0)
        moved.append(np.linalg.norm(correction.mean - reference) / np.linalg.norm(own - reference))
    assert moved == pytest.approx([5 / 15, 20 / 30, 60 / 70], abs=1e-3)


def test_a_source_of_fewer_faces_is_left_alone() -> None:
    rows, sources, _ = draw_gallery(5.0, masked_people=MIN_FACES_TO_CORRECT - 1)
    assert not fit_compensation(rows, sources).corrections
    rows, sources, _ = draw_gallery(5.0, masked_people=1)
    assert judge_compensation(rows, sources, np.full(len(rows), -1), EUCLIDEAN).decisions["masked"].reason == (
        "too few faces"
    )


def test_one_source_needs_no_compensation() -> None:
    rows, _, people = draw_gallery(0.0)
    judged = judge_compensation(rows, np.full(len(rows), "door"), people, EUCLIDEAN)
    assert not judged.compensation.corrections
    assert judged.decisions["door"].reason == "reference"


def test_the_corrections_of_all_sources_take_a_bounded_memory() -> None:
    for dim in (1, 128, MAX_SPREAD_DIM, MAX_SPREAD_DIM + 1, 16_384):
        numbers = dim * dim if dim <= MAX_SPREAD_DIM else dim
        assert 0 < limit_sources(dim) * numbers * 8 <= 64 * 2**20
    assert [limit_sources(dim) for dim in (128, MAX_SPREAD_DIM)] == [100, 32]


def test_equal_faces_have_no_spread_to_align() -> None:
    rows = np.ones((40, DIM), np.float32)
    sources = np.array([NO_SOURCE] * 30 + ["door"] * 10)
    assert np.array_equal(fit_compensation(rows, sources).apply(rows, sources), rows)


def test_wide_embeddings_are_corrected_by_their_mean_only() -> None:
    rows = np.random.default_rng(0).normal(size=(40, MAX_SPREAD_DIM + 1)).astype(np.float32)
    sources = np.array([NO_SOURCE] * 30 + ["door"] * 10)
    assert fit_compensation(rows, sources).corrections["door"].spread is None


def test_the_spread_is_aligned_if_there_are_many_faces() -> None:
    rng = np.random.default_rng(0)
    scales = np.linspace(0.5, 2.0, DIM)
    rows = np.concatenate([rng.normal(size=(4000, DIM)), scales * rng.normal(size=(4000, DIM))]).astype(np.float32)
    sources = np.array([NO_SOURCE] * 4000 + ["door"] * 4000)
    corrected = fit_compensation(rows, sources).apply(rows, sources)
    before, after = (one[4000:].std(0).std() for one in (rows, corrected))
    assert after < before


def test_compensation_survives_saving() -> None:
    rows, sources, _ = draw_gallery(5.0)
    compensation = fit_compensation(rows, sources)
    loaded = SourceCompensation.from_bytes(compensation.to_bytes())
    assert np.array_equal(loaded.apply(rows, sources), compensation.apply(rows, sources))
    assert (loaded.reference, loaded.has_unit_length) == (compensation.reference, True)
    assert loaded.corrections["masked"].shift == compensation.corrections["masked"].shift
    with pytest.raises(Corrupt):
        SourceCompensation.from_bytes(compensation.to_bytes()[:200])


def test_a_correction_that_helps_is_on() -> None:
    rows, sources, people = draw_gallery(6.0)
    judged = judge_compensation(rows, sources, people, EUCLIDEAN)
    decision = judged.decisions["masked"]
    assert (decision.is_on, decision.reason) == (True, "helps")
    assert decision.comparison is not None
    assert decision.comparison.difference.low > 0
    assert decision.comparison.groups == PEOPLE
    assert set(judged.compensation.corrections) == {"masked"}


def test_a_correction_that_does_not_help_is_off() -> None:
    """A source whose photos differ in nothing."""
    rows, sources, people = draw_gallery(0.0)
    judged = judge_compensation(rows, sources, people, EUCLIDEAN)
    assert (judged.decisions["masked"].is_on, judged.decisions["masked"].reason) == (False, "does not help")
    assert not judged.compensation.corrections


@pytest.mark.parametrize(("shift", "reason"), [(6.0, "large shift"), (0.0, "small shift")])
def test_without_people_across_sources_the_shift_decides(shift: float, reason: str) -> None:
    rows, sources, people = draw_gallery(shift)
    people = np.where(sources == "masked", -1, people)
    decision = judge_compensation(rows, sources, people, EUCLIDEAN).decisions["masked"]
    assert decision.reason == reason
    assert decision.is_on == (reason == "large shift")
    assert decision.shift is not None
    assert (decision.shift >= LARGE_SHIFT) == decision.is_on
    assert decision.comparison is None


def test_too_few_people_are_no_judgement() -> None:
    rows, sources, people = draw_gallery(6.0)
    people = np.where((sources == "masked") & (people >= MIN_PEOPLE_TO_JUDGE - 1), -1, people)
    assert judge_compensation(rows, sources, people, EUCLIDEAN).decisions["masked"].reason == "large shift"


def test_different_people_are_no_large_shift() -> None:
    """Chance differences of small sources are not taken for a shift."""
    rows, _, _ = draw_gallery(0.0)
    for seed in range(10):
        sources = np.where(np.random.default_rng(seed).random(len(rows)) < 0.1, "door", NO_SOURCE)
        decision = judge_compensation(rows, sources, np.full(len(rows), -1), EUCLIDEAN).decisions["door"]
        assert not decision.is_on


def judge_gallery(shift: float, masked_people: int = PEOPLE) -> tuple[SourceCompensation, Rows, Sources]:
    rows, sources, people = draw_gallery(shift, masked_people)
    return judge_compensation(rows, sources, people, EUCLIDEAN).compensation, rows, sources


def test_a_source_that_differs_clearly_is_recognised_in_faces_of_other_people() -> None:
    compensation, rows, sources = judge_gallery(12.0)
    recognised = compensation.discriminants["masked"].recognised
    assert recognised > 0.9
    assert (compensation.guess(rows)[sources == NO_SOURCE] == NO_SOURCE).all()
    direction = np.random.default_rng(0)
    others = direction.normal(size=(PEOPLE, DIM))  # the draws of `draw_gallery` up to the direction of the mask
    direction.normal(0, 0.5, (4 * PEOPLE, DIM))
    mask = 12.0 * direction.normal(size=DIM) / np.sqrt(DIM)
    strangers = np.random.default_rng(5).normal(size=others.shape)
    assert (compensation.guess(scale_to_unit_length(strangers + mask)) == "masked").mean() > 0.8
    assert (compensation.guess(scale_to_unit_length(strangers)) == "masked").mean() < 0.05


@pytest.mark.parametrize(("shift", "masked_people"), [(0.0, PEOPLE), (1.0, PEOPLE), (12.0, 15)])
def test_a_source_that_is_like_others_or_small_is_not_guessed(shift: float, masked_people: int) -> None:
    compensation, rows, _ = judge_gallery(shift, masked_people)
    assert not compensation.discriminants
    assert (compensation.guess(rows) == NO_SOURCE).all()


def test_a_source_of_very_wide_embeddings_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its discriminant needs a covariance with the square of their numbers: 2 GiB with 16,384."""
    draw = np.random.default_rng(0)
    reference, own = draw.normal(size=(40, 8)), draw.normal(size=(40, 8)) + 10
    folds = np.arange(40) % 2
    assert Discriminant.fit(reference, own, folds, folds) is not None
    monkeypatch.setattr("ml.compensation.guess.MAX_GUESS_DIM", 7)
    assert Discriminant.fit(reference, own, folds, folds) is None


def test_discriminants_are_stored_and_kept_with_their_sources() -> None:
    compensation, rows, sources = judge_gallery(12.0)
    read = SourceCompensation.from_bytes(compensation.to_bytes())
    assert np.array_equal(read.guess(rows), compensation.guess(rows))
    assert read.discriminants["masked"].recognised == compensation.discriminants["masked"].recognised
    assert not compensation.keep([]).discriminants
    without = SourceCompensation.from_bytes(fit_compensation(rows, sources).to_bytes())
    assert not without.discriminants


def test_faces_without_a_source_are_not_guessed_where_they_are_corrected_themselves() -> None:
    rows, sources, people = draw_gallery(12.0)
    swapped = np.where(sources == NO_SOURCE, "badge", NO_SOURCE)
    judged = judge_compensation(rows, swapped, people, EUCLIDEAN)
    assert judged.decisions[NO_SOURCE].is_on
    assert not judged.compensation.discriminants
