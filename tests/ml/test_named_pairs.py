"""Thresholds of few people from pairs of faces with a name, which photos that look alike do not loosen."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from ml.calibration import ImpostorDistances, NamedPairs, extrapolate_tail, sample_impostors
from ml.calibration.named_pairs import MIN_PAIRS, MIN_PEOPLE_PAIRS, find_design_effect
from ml.distances import EUCLIDEAN
from ml.identification.open_set import NameCounts, OpenSetCalibration
from ml.identification.person_distance import NEAREST_FACE
from ml.types import Ids, Rows

DIM = 64
NOBODY = np.empty((0, DIM), np.float32)


def draw_faces(people: int, photos: int, noise: float, seed: int) -> tuple[Rows, Ids]:
    """Draw unit rows of people, of whom all photos differ by this much noise."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(people, 1, DIM)) + noise * rng.normal(size=(people, photos, DIM))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    return rows.reshape(-1, DIM).astype(np.float32), np.arange(people).repeat(photos)


def name_strangers(rows: Rows, people: Ids, fpir: float, seed: int) -> float:
    """Return the share of strangers whose nearest face matches, at a threshold from the pairs of a gallery."""
    pairs = ImpostorDistances.of(sample_impostors(rows, people, 20_000, 0))
    named_pairs = NamedPairs.measure(rows, people, NOBODY, EUCLIDEAN)
    threshold = OpenSetCalibration(NEAREST_FACE, named_pairs=named_pairs).pairs_threshold(fpir, len(rows), (pairs,))
    assert threshold is not None
    strangers = draw_faces(1000, 1, 0.1, seed)[0]
    return float((EUCLIDEAN.distances(strangers, rows).min(1) <= threshold.person_distance).mean())


@pytest.mark.parametrize(("people", "photos"), [(5, 40), (9, 30), (20, 20)])
def test_frames_that_look_alike_tell_no_more_of_strangers_than_one_of_each_person(people: int, photos: int) -> None:
    """By all pairs of frames, up to 83 % of strangers were named at 1 %, and 26, 9 and 5 % in the mean."""
    shares = [name_strangers(*draw_faces(people, photos, 0.1, seed), 0.01, seed + 100) for seed in range(8)]
    assert max(shares) <= 0.01


def test_distractors_that_lie_near_each_other_decide_nothing() -> None:
    """Faces of a camera at night all look alike to a recogniser, and nobody was named beside them."""
    rows, people = draw_faces(12, 2, 0.3, 0)
    night = draw_faces(300, 1, 0.0, 1)[0] * 0.05 + draw_faces(1, 1, 0.0, 2)[0]
    night /= np.linalg.norm(night, axis=1, keepdims=True)
    everybody = np.concatenate([people, 12 + np.arange(300)])
    of_all = ImpostorDistances.of(sample_impostors(np.concatenate([rows, night]), everybody, 50_000, 0))
    probes, strangers = draw_faces(12, 3, 0.3, 0)[0], draw_faces(1000, 1, 0.3, 3)[0]
    mates = np.array(
        [EUCLIDEAN.distances(probe[None], rows[people == i]).min() for i, probe in enumerate(probes[2::3])]
    )
    found = list[float]()
    for named_pairs in (None, NamedPairs.measure(rows, people, night, EUCLIDEAN)):
        calibration = OpenSetCalibration(NEAREST_FACE, named_pairs=named_pairs)
        threshold = calibration.pairs_threshold(0.01, 324, (of_all,), NameCounts(24, 300))
        assert threshold is not None
        assert (EUCLIDEAN.distances(strangers, rows).min(1) <= threshold.person_distance).mean() <= 0.01
        assert threshold.nameless_distance < 0.01, "of faces without a name, pairs of distractors decide"
        found.append(float((mates <= threshold.person_distance).mean()))
    assert found[0] == 0
    assert found[1] > 0.8


def test_distractors_that_are_near_the_people_of_the_gallery_count() -> None:
    rows, people = draw_faces(30, 3, 0.3, 0)
    near = rows[::3].repeat(20, axis=0) + np.random.default_rng(1).normal(0, 0.08, (600, DIM)).astype(np.float32)
    alone, beside = (NamedPairs.measure(rows, people, others, EUCLIDEAN) for others in (NOBODY, near))
    assert alone is not None
    assert beside is not None
    assert alone.distractors is None
    for fmr in (1e-4, 1e-2):
        distances = alone.find_distance(fmr), beside.find_distance(fmr)
        assert distances[0] is not None
        assert distances[1] is not None
        assert distances[1] < distances[0] - 0.3


def test_few_people_or_few_pairs_tell_nothing() -> None:
    rows, people = draw_faces(4, 30, 0.3, 0)
    few_people = NamedPairs.measure(rows, people, NOBODY, EUCLIDEAN)
    assert few_people is not None
    assert (few_people.people_pairs, few_people.faces.n > MIN_PAIRS) == (6, True)
    assert few_people.people_pairs < MIN_PEOPLE_PAIRS
    assert few_people.is_of_few_people
    few_faces = NamedPairs.measure(*draw_faces(9, 2, 0.3, 0), NOBODY, EUCLIDEAN)
    assert few_faces is not None
    assert (few_faces.faces.n, few_faces.people_pairs, few_faces.is_of_few_people) == (144, 36, False)
    beside = NamedPairs.measure(rows, people, draw_faces(50, 1, 0.3, 1)[0], EUCLIDEAN)
    assert beside is not None
    assert not beside.is_of_few_people, "distractors are people, too"
    assert few_people.find_distance(0.01) is few_faces.find_distance(0.01) is None
    assert NamedPairs.measure(rows[:30], people[:30], rows[30:], EUCLIDEAN) is None, "there is one person alone"
    pairs = (ImpostorDistances.of(sample_impostors(rows, people, 20_000, 0)),)
    with_names, without = (OpenSetCalibration(NEAREST_FACE, named_pairs=p) for p in (few_people, None))
    assert with_names.pairs_threshold(0.01, 120, pairs) == without.pairs_threshold(0.01, 120, pairs)


@pytest.mark.parametrize("draw", [np.random.default_rng(0).normal, np.random.default_rng(0).gumbel])
@pytest.mark.parametrize(("n", "alike"), [(36, 10), (300, 1), (300, 4), (5000, 1)])
def test_a_tail_is_extrapolated_to_the_safe_side(draw: Callable[..., np.ndarray], n: int, alike: int) -> None:
    """The left tail of Gumbel's distribution is short."""
    true = np.sort(draw(size=2_000_000))
    for fmr in (1e-2, 1e-3, 1e-4):
        samples = [draw(size=n).repeat(alike) for _ in range(200)]
        found = [extrapolate_tail(ImpostorDistances.of(sample), fmr, float(alike)) for sample in samples]
        accepted = np.searchsorted(true, np.array(found, float)) / len(true)
        assert np.mean(accepted) < 1.5 * fmr


def test_the_design_effect_is_the_size_of_groups_that_are_all_alike_and_1_without_groups() -> None:
    rng, groups = np.random.default_rng(0), np.arange(300).repeat(20)
    alike, independent = rng.normal(size=300)[groups], rng.normal(size=6000)
    assert find_design_effect(alike, groups) == pytest.approx(20)
    assert find_design_effect(independent, groups) == pytest.approx(1, abs=0.3)
    assert find_design_effect(alike + independent, groups) == pytest.approx(1 + 19 / 2, rel=0.15)
    assert find_design_effect(independent, np.arange(6000)) == 1
    assert find_design_effect(np.ones(6000), groups) == 20


def test_pairs_survive_json() -> None:
    pairs = NamedPairs.measure(*draw_faces(12, 2, 0.3, 0), draw_faces(50, 1, 0.3, 1)[0], EUCLIDEAN)
    assert pairs is not None
    assert NamedPairs.from_dict(asdict(pairs)) == pairs
    calibration = OpenSetCalibration(NEAREST_FACE, named_pairs=pairs)
    assert OpenSetCalibration.from_dict(calibration.to_dict()) == calibration
    older = {name: value for name, value in calibration.to_dict().items() if name != "named_pairs"}
    assert OpenSetCalibration.from_dict(older).named_pairs is None
