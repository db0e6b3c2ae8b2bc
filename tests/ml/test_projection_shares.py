"""What the common and the own projection of a task do, where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from ml.distances import EUCLIDEAN
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.projection_shares import compute_shares, describe_projections, measure_angles
from ml.embedder_training.task_measurement import HoldoutEmbeddings, measure_tasks
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.cpmtml import Cpmtml
from ml.embedders.mtlmca import Mtlmca
from ml.embedders.stml import Stml
from ml.embedders.utml import Utml
from ml.errors import NotFitted
from tests.ml.synthetic_people import two_tasks

WIDTH, PHOTOS = 20, 8
MOOD_NUMBERS = slice(12, 14)
"""The numbers of a row that depend on the mood; the first eight depend on the person."""


def draw_faces(count: int = 60, seed: int = 0) -> TrainingSet:
    """Rows whose mood is told by two numbers that have nothing of the person."""
    rng = np.random.default_rng(seed)
    person, mood = np.repeat(np.arange(count), PHOTOS), rng.integers(0, 4, count * PHOTOS)
    rows = 0.5 * rng.standard_normal((len(person), WIDTH))
    rows[:, :8] += 1.5 * rng.standard_normal((count, 8))[person]
    rows[:, MOOD_NUMBERS] += 1.5 * rng.standard_normal((4, 2))[mood]
    faces = np.arange(len(person))
    tasks = TaskData("identity", faces, person * 1.0, person), TaskData("mood", faces, mood * 1.0, person)
    return TrainingSet(rows.astype(np.float32), tasks)


def make_known_model() -> Cpmtml:
    """A model whose common projection takes numbers of the person, and whose own of the mood those of the mood."""
    eye = np.eye(WIDTH, dtype=np.float32)
    embedder = Cpmtml(dim=2)
    embedder.tasks = ("identity", "mood")
    stacks = np.stack([np.concatenate([eye[:2], eye[2:4]]), np.concatenate([eye[:2], eye[MOOD_NUMBERS]])])
    embedder.learned = {"projections": stacks, "offsets": np.ones((2, 4), np.float32), "bias": np.ones(2, np.float32)}
    return embedder


def measure(embedder: Embedder, data: TrainingSet) -> dict:
    """Measure on all faces of a set, none of which the embedder has learned from."""
    everybody = np.ones(len(data.rows), bool)
    no_pairs = np.empty((0, 2), np.int64)
    tasks = [
        TaskExamples(
            task.task, everybody, task.values, task.values, 0.0, "subjects", no_pairs, np.empty(0, bool),
            np.empty(0, np.float32), 0, None,
        )
        for task in data.tasks
    ]  # fmt: skip
    embeddings = {
        task: HoldoutEmbeddings(
            EUCLIDEAN, np.arange(len(data.rows)), embedder.embed(data.rows, task), embedder.embed(data.rows[:3], task)
        )
        for task in embedder.tasks
    }
    projections, people = embedder.split_projections(), data.tasks[0].people
    measured = measure_tasks(tasks, people, everybody, embeddings, projections)
    return {task: describe_projections(projections, measured[task]) for task in projections}


def test_a_task_that_the_common_part_cannot_see_is_carried_by_its_own() -> None:
    report = measure(make_known_model(), draw_faces(seed=1))
    mood, identity = report["mood"], report["identity"]
    assert mood["parts"]["own"]["separation_share"] == pytest.approx(1, abs=0.05)
    assert abs(mood["parts"]["common"]["separation_share"]) < 0.05
    assert mood["parts"]["common"]["distance_share"] > 0.3, "it costs distance all the same"
    maps = {name: mood["parts"][name]["mAP"]["value"] for name in ("common", "own", "both")}
    assert maps["common"] < 0.35, "four moods by chance"
    assert maps["own"] > maps["both"] > maps["common"] + 0.1
    assert mood["gains"]["own_over_common"]["low"] > 0.1
    assert mood["gains"]["own_over_common"]["p"] < 0.01
    assert mood["gains"]["common_over_own"]["high"] < 0, "the common part harms this task"
    assert identity["parts"]["common"]["separation_share"] == pytest.approx(0.5, abs=0.1)
    assert [mood["parts"][name]["numbers"] for name in ("common", "own", "both")] == [2, 2, 4]
    assert mood["angles"]["to_common"]["smallest"] == pytest.approx(90)
    assert mood["angles"]["to_tasks"]["identity"]["smallest"] == pytest.approx(90)


def test_shares_of_both_parts_sum_to_one() -> None:
    for of_task in measure(make_known_model(), draw_faces(seed=2)).values():
        for share in ("distance_share", "variance_share", "separation_share"):
            assert of_task["parts"]["common"][share] + of_task["parts"]["own"][share] == pytest.approx(1, abs=1e-5)
            assert of_task["parts"]["both"][share] == pytest.approx(1)


def test_shares_of_pairs_of_one_kind_are_undefined() -> None:
    distances = {"common": np.array([1.0, 2]), "own": np.array([2.0, 1]), "both": np.array([3.0, 3])}
    shares = compute_shares(distances, np.array([True, True]))
    assert shares["own"] == {"distance_share": 0.5, "variance_share": None, "separation_share": None}


def test_angles_are_those_between_subspaces() -> None:
    first, second = np.array([[2.0, 0, 0]]), np.array([[1.0, 1, 0], [0, 0, 3]])
    assert measure_angles(first, second) == pytest.approx({"smallest": 45, "median": 45, "largest": 45})
    assert measure_angles(second, 5 * second[::-1]) == pytest.approx(
        {"smallest": 0, "median": 0, "largest": 0}, abs=1e-5
    )
    assert measure_angles(first, second[:0]) is None


def test_a_fitted_model_learns_the_mood_in_its_own_projection() -> None:
    options = {"dim": 2, "steps": 600, "pairs": 4000, "auxiliary_pairs": 4000, "held_out": 0.0}
    embedder = Cpmtml.from_options(**options).fit(draw_faces())
    mood = measure(embedder, draw_faces(seed=3))["mood"]
    assert mood["parts"]["own"]["separation_share"] > 0.8
    assert mood["gains"]["own_over_common"]["low"] > 0.1


def test_methods_with_one_kind_of_projection_have_one_part() -> None:
    small = {"dim": 4, "steps": 20, "pairs": 500, "held_out": 0.0}
    data = two_tasks()
    shared = measure(Utml.from_options(**small, auxiliary_pairs=500).fit(data), data)
    assert shared["mood"]["parts"]["own"] is None
    assert shared["mood"]["parts"]["common"]["variance_share"] == pytest.approx(1)
    assert (shared["mood"]["gains"], shared["mood"]["angles"]["to_common"]) == ({}, None)
    single = measure(Stml.from_options(**small).fit(data), data)
    assert single["identity"]["parts"]["common"] is None
    assert single["identity"]["parts"]["own"]["mAP"] == single["identity"]["parts"]["both"]["mAP"]
    assert measure(Cosine().fit(data), data) == {}
    with pytest.raises(NotFitted):
        Cpmtml().split_projections()


def test_a_task_in_which_nothing_can_be_ranked_has_angles_alone() -> None:
    identity, mood = draw_faces(seed=1).tasks
    no_two_alike = replace(mood, values=np.arange(len(mood.values)) * 1.0)
    data = TrainingSet(draw_faces(seed=1).rows, (identity, no_two_alike))
    report = measure(make_known_model(), data)
    assert report["mood"].keys() == {"is_sum", "angles"}
    assert report["identity"].keys() == {"is_sum", "angles", "parts", "gains"}


def test_a_turned_projection_is_compared_with_the_common_one() -> None:
    data = two_tasks()
    options = {"dim": 4, "steps": 200, "pairs": 2000, "auxiliary_pairs": 2000, "held_out": 0.0}
    embedder = Mtlmca.from_options(**options).fit(data)
    report = measure(embedder, data)
    parts = report["mood"]["parts"]
    assert parts["own"] is None, "nothing is left of a turn without what it turns"
    assert parts["common"]["mAP"] != parts["both"]["mAP"]
    assert report["identity"]["parts"]["common"]["mAP"] == report["identity"]["parts"]["both"]["mAP"], "R_1 = I"
    assert report["mood"]["is_sum"] is False
    assert report["mood"]["angles"]["to_common"]["largest"] < 1, "both see the same directions"
    assert "variance_share" not in parts["both"]
    assert report["mood"]["gains"].keys() == {"own_over_common"}
