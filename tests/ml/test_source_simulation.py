"""Simulated sources: how crops are degraded, which degradation is chosen, and what its pairs of faces teach."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.compensation import (
    NO_SOURCE,
    Describe,
    SimulatedFaces,
    SourceCompensation,
    Sources,
    degrade_crops,
    fit_compensation,
    judge_compensation,
    simulate_sources,
)
from ml.compensation.degradations import DEGRADATIONS
from ml.compensation.simulation import MAX_PAIRS, MIN_EXPLAINED_SHARE, TRIAL_FACES, choose_degradation
from ml.distances import EUCLIDEAN
from ml.types import CropKind, Crops, Ids, Rows

DIM, PEOPLE, PHOTOS = 24, 300, 3
CAMERA = "15 pixels"
"""What the source `gate` of these tests does to a face."""


def scale_to_unit_length(rows: NDArray[np.floating[Any]]) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


class Camera:
    """Degrades embeddings, each way by another linear map that loses directions, and by noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.maps = {name: rng.normal(size=(DIM, DIM)) * (rng.random(DIM) < 0.5) for name in DEGRADATIONS}
        self.shifts = {name: rng.normal(size=DIM) for name in DEGRADATIONS}

    def degrade(self, rows: Rows, name: str, seed: int) -> Rows:
        noise = np.random.default_rng(seed).normal(0, 0.15, rows.shape)
        return scale_to_unit_length(0.5 * rows @ self.maps[name] + 0.7 * self.shifts[name] + noise)


def draw_gallery(named: bool = True, common: float = 0.0) -> tuple[Rows, Sources, Ids, Describe]:
    """Three good photos of each person, and a fourth one from the gate of every second person.

    common: what all embeddings have in common, before they are scaled to unit length
    """
    rng = np.random.default_rng(0)
    people = np.concatenate([np.repeat(np.arange(PEOPLE), PHOTOS), np.arange(0, PEOPLE, 2)])
    rows = rng.normal(size=(PEOPLE, DIM))[people] + rng.normal(0, 0.4, (len(people), DIM))
    rows = scale_to_unit_length(rows + common)
    is_gate = np.arange(len(people)) >= PEOPLE * PHOTOS
    camera = Camera()
    good = rows.copy()
    rows[is_gate] = camera.degrade(rows[is_gate], CAMERA, 1)

    def describe(name: str, positions: Ids) -> Rows:
        return camera.degrade(good[positions], name, 2)

    return rows, np.where(is_gate, "gate", NO_SOURCE), people if named else np.full(len(people), -1), describe


def measure_first_rank(rows: Rows, sources: Sources, people: Ids) -> float:
    """Return the share of gate photos whose nearest good photo shows the same person."""
    is_gate = sources == "gate"
    nearest = EUCLIDEAN.distances(rows[is_gate], rows[~is_gate]).argmin(1)
    return float((people[~is_gate][nearest] == people[is_gate]).mean())


@pytest.mark.parametrize("kind", ["grey", "colour"])
@pytest.mark.parametrize("name", DEGRADATIONS)
def test_a_crop_is_degraded_the_same_way_each_time(kind: CropKind, name: str) -> None:
    shape = (170, 100) if kind == "grey" else (112, 112, 3)
    crops: Crops = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    before = crops.copy()
    degraded = degrade_crops(crops, name)
    assert degraded.shape == crops.shape
    assert degraded.dtype == np.uint8
    assert np.array_equal(crops, before)
    assert all((one != other).mean() > 0.1 for one, other in zip(degraded, crops, strict=True))
    assert np.array_equal(degrade_crops(crops[::-1], name)[::-1], degraded)


def test_fewer_pixels_leave_less_detail() -> None:
    crops = np.random.default_rng(0).integers(0, 256, (1, 112, 112, 3), dtype=np.uint8)
    spreads = [degrade_crops(crops, f"{width} pixels").std() for width in (38, 15, 8)]
    assert crops.std() > spreads[0] > spreads[1] > spreads[2]


def test_an_unknown_degradation_is_refused() -> None:
    with pytest.raises(KeyError):
        degrade_crops(np.zeros((1, 112, 112, 3), np.uint8), "fog")


def test_the_degradation_with_the_nearest_change_is_chosen() -> None:
    changes = {"near": np.array([1.0, 0.5]), "far": np.array([-1.0, 0.0])}
    assert choose_degradation(np.array([1.0, 0.0]), changes) == ("near", 0.75)
    assert choose_degradation(np.array([0.0, 0.0]), changes)[1] < 0


def test_a_source_that_a_degradation_explains_is_simulated() -> None:
    rows, sources, _, describe = draw_gallery()
    calls: list[tuple[str, int]] = []

    def count(name: str, positions: Ids) -> Rows:
        assert np.all(sources[positions] == NO_SOURCE)
        calls.append((name, len(positions)))
        return describe(name, positions)

    [simulated] = simulate_sources(rows, sources, NO_SOURCE, count).values()
    assert simulated.degradation == CAMERA
    assert simulated.explained > MIN_EXPLAINED_SHARE
    assert len(simulated.faces) == len(simulated.rows) == PEOPLE * PHOTOS < MAX_PAIRS
    assert calls == [(name, TRIAL_FACES) for name in DEGRADATIONS] + [(CAMERA, PEOPLE * PHOTOS)]


def test_other_people_are_not_simulated() -> None:
    """A source whose photos are as good, but show other people."""
    rows, sources, _, describe = draw_gallery()
    good = sources == NO_SOURCE
    direction = np.random.default_rng(3).normal(size=DIM)
    sites = np.where(rows[good] @ direction > 0, NO_SOURCE, "site")
    assert simulate_sources(rows[good], sites, NO_SOURCE, describe) == {}


def test_a_small_reference_is_not_simulated() -> None:
    rows, sources, _, describe = draw_gallery()
    kept = np.concatenate([np.arange(299), np.flatnonzero(sources == "gate")])
    assert simulate_sources(rows[kept], sources[kept], NO_SOURCE, describe) == {}
    alone = sources == NO_SOURCE
    assert simulate_sources(rows[alone], sources[alone], NO_SOURCE, describe) == {}


def test_faces_that_cannot_be_degraded_are_left_out() -> None:
    rows, sources, _, describe = draw_gallery()
    whole = simulate_sources(rows, sources, NO_SOURCE, describe)["gate"]

    def lose(positions_lost: int) -> dict[str, SimulatedFaces]:
        def describe_rest(name: str, positions: Ids) -> Rows:
            return np.where(positions[:, None] < positions_lost, np.nan, describe(name, positions)).astype(np.float32)

        return simulate_sources(rows, sources, NO_SOURCE, describe_rest)

    [rest] = lose(500).values()
    assert np.array_equal(rest.faces, whole.faces[whole.faces >= 500])
    assert rest.degradation == CAMERA
    assert np.isfinite(rest.rows).all()
    assert lose(len(rows) - 200) == {}
    assert lose(len(rows)) == {}


def test_simulated_pairs_find_more_than_the_faces_of_the_source_alone() -> None:
    rows, sources, people, describe = draw_gallery()
    simulations = simulate_sources(rows, sources, NO_SOURCE, describe)
    plain = fit_compensation(rows, sources, NO_SOURCE).apply(rows, sources)
    simulated = fit_compensation(rows, sources, NO_SOURCE, simulations).apply(rows, sources)
    before, by_faces, by_pairs = (measure_first_rank(one, sources, people) for one in (rows, plain, simulated))
    assert by_pairs > by_faces + 0.15 > before + 0.15
    good = sources == NO_SOURCE
    assert np.array_equal(simulated[good], rows[good])
    assert np.allclose(np.linalg.norm(simulated, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("common", [0.0, 2.0])
def test_corrected_faces_lie_as_far_from_strangers_as_good_ones(common: float) -> None:
    """In a gallery of both, a search finds neither kind first whoever it is for."""
    rows, sources, people, describe = draw_gallery(common=common)
    simulations = simulate_sources(rows, sources, NO_SOURCE, describe)
    corrected = fit_compensation(rows, sources, NO_SOURCE, simulations).apply(rows, sources)
    is_gate = sources == "gate"
    distances = EUCLIDEAN.distances(corrected, corrected)
    is_stranger = people[:, None] != people[None, :]
    [among_good, across, among_poor] = [
        float(distances[np.ix_(one, other)][is_stranger[np.ix_(one, other)]].mean())
        for one, other in ((~is_gate, ~is_gate), (is_gate, ~is_gate), (is_gate, is_gate))
    ]
    assert across == pytest.approx(among_good, rel=0.05)
    assert among_poor == pytest.approx(among_good, rel=0.05)


def test_a_few_faces_of_a_simulated_source_suffice() -> None:
    rows, sources, people, describe = draw_gallery()
    few = np.sort(np.random.default_rng(0).permutation(np.flatnonzero(sources == "gate"))[:5])
    taught = np.concatenate([np.flatnonzero(sources == NO_SOURCE), few])
    simulations = simulate_sources(rows[taught], sources[taught], NO_SOURCE, describe)
    simulated = fit_compensation(rows[taught], sources[taught], NO_SOURCE, simulations).apply(rows, sources)
    plain = fit_compensation(rows[taught], sources[taught], NO_SOURCE).apply(rows, sources)
    assert measure_first_rank(simulated, sources, people) > measure_first_rank(plain, sources, people) + 0.2


def test_rows_of_any_length_are_corrected_without_simulation() -> None:
    rows, sources, _, describe = draw_gallery()
    simulations = simulate_sources(rows, sources, NO_SOURCE, describe)
    assert fit_compensation(3 * rows, sources, NO_SOURCE, simulations).corrections["gate"].degradation is None


def test_copies_of_some_faces_point_to_the_rows_that_remain() -> None:
    simulated = SimulatedFaces(np.array([0, 2, 5]), np.arange(6.0, dtype=np.float32).reshape(3, 2), CAMERA, 0.9)
    kept = simulated.keep(np.array([False, True, True, False, True, True]))
    assert kept.faces.tolist() == [1, 3]
    assert kept.rows.tolist() == [[2, 3], [4, 5]]


def test_a_simulated_correction_survives_saving() -> None:
    rows, sources, _, describe = draw_gallery()
    compensation = fit_compensation(rows, sources, NO_SOURCE, simulate_sources(rows, sources, NO_SOURCE, describe))
    loaded = SourceCompensation.from_bytes(compensation.to_bytes())
    assert np.array_equal(loaded.apply(rows, sources), compensation.apply(rows, sources))
    assert loaded.corrections["gate"].degradation == CAMERA


def test_a_compensation_that_an_earlier_version_saved_is_read() -> None:
    rows, sources, _, _ = draw_gallery()
    compensation = fit_compensation(rows, sources, NO_SOURCE)
    with np.load(io.BytesIO(compensation.to_bytes())) as file:
        arrays = {name: array for name, array in file.items() if name != "degradations"}
    earlier = io.BytesIO()
    np.savez(earlier, **arrays)
    loaded = SourceCompensation.from_bytes(earlier.getvalue())
    assert np.array_equal(loaded.apply(rows, sources), compensation.apply(rows, sources))


def test_a_simulation_that_helps_more_is_chosen_on_people_held_out() -> None:
    rows, sources, people, describe = draw_gallery()
    simulations = simulate_sources(rows, sources, NO_SOURCE, describe)
    judged = judge_compensation(rows, sources, people, EUCLIDEAN, simulations)
    plain = judge_compensation(rows, sources, people, EUCLIDEAN)
    decision, without = judged.decisions["gate"], plain.decisions["gate"]
    assert (decision.is_on, decision.reason, decision.degradation) == (True, "helps", CAMERA)
    assert decision.comparison is not None
    assert without.comparison is not None
    assert decision.comparison.difference.low > without.comparison.difference.value
    assert judged.compensation.corrections["gate"].degradation == CAMERA


def test_a_simulation_that_helps_less_is_not_used() -> None:
    rows, sources, people, describe = draw_gallery()
    [right] = simulate_sources(rows, sources, NO_SOURCE, describe).values()
    wrong = np.random.default_rng(0).permutation(len(right.rows))
    simulations = {"gate": SimulatedFaces(right.faces, right.rows[wrong], "wrong", 0.9)}
    judged = judge_compensation(rows, sources, people, EUCLIDEAN, simulations)
    plain = judge_compensation(rows, sources, people, EUCLIDEAN)
    assert judged.decisions == plain.decisions
    assert np.array_equal(judged.compensation.apply(rows, sources), plain.compensation.apply(rows, sources))


def test_without_people_across_sources_a_simulation_decides() -> None:
    rows, sources, nobody, describe = draw_gallery(named=False)
    simulations = simulate_sources(rows, sources, NO_SOURCE, describe)
    decision = judge_compensation(rows, sources, nobody, EUCLIDEAN, simulations).decisions["gate"]
    assert (decision.is_on, decision.reason, decision.degradation) == (True, "simulated", CAMERA)
    assert decision.comparison is None
