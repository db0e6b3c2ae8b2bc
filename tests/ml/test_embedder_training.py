"""An embedder is trained from arrays alone: the training set, the fit, the held-out people and the calibration."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from ml.calibration import MIN_PAIRS_PER_CLASS
from ml.distances import Distance
from ml.embedder_training.calibrations import TaskCalibrations, calibrate_tasks
from ml.embedder_training.carried_distances import carry_over
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.fit import fit_embedder
from ml.embedder_training.held_out_strangers import measure_held_out_strangers
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.task_measurement import HoldoutEmbeddings, TaskMeasurement, measure_tasks
from ml.embedder_training.training_set import IMPLIED_PAIR_WEIGHT, make_training_set
from ml.embedders.base import Embedder, ignore_progress
from ml.types import Ids, Rows
from tests.ml.synthetic_people import people as draw_people

DATA = draw_people()
ROWS, PEOPLE = DATA.rows, DATA.tasks[0].people
HELD_OUT = PEOPLE % 3 == 0


def make_examples(pairs: Ids, same: list[bool], values: bool = True) -> TaskExamples:
    known = PEOPLE * 1.0 if values else np.full(len(PEOPLE), np.nan)
    weights = np.ones(len(same), np.float32)
    flags, member = np.array(same, np.bool_), np.ones(len(PEOPLE), np.bool_)
    origin = "subjects" if values else "labels"
    return TaskExamples("identity", member, known, known, 0.0, origin, pairs, flags, weights, 0, None)


NAMED = make_examples(np.empty((0, 2), np.int64), [])


def fit_wpca(kept: np.ndarray) -> Embedder:
    training_set = make_training_set([NAMED], PEOPLE, ROWS, kept)
    return fit_embedder("wpca", {"dim": 8}, training_set, ignore_progress)


def measure(embedder: Embedder, examples: TaskExamples = NAMED, distractors: Rows = ROWS[:0]) -> TaskMeasurement:
    embeddings = HoldoutEmbeddings(
        embedder.metric, np.arange(len(ROWS)), embedder.embed(ROWS, "identity"), embedder.embed(distractors, "identity")
    )
    return measure_tasks([examples], PEOPLE, HELD_OUT, {"identity": embeddings})["identity"]


def test_a_training_set_numbers_the_kept_faces_anew_and_drops_the_labels_of_others() -> None:
    kept = np.ones(len(PEOPLE), np.bool_)
    kept[:3] = False
    labelled = make_examples(np.array([[0, 5], [5, 6], [6, 7]]), [True, True, True], values=False)
    [task] = make_training_set([labelled], PEOPLE, ROWS, kept).tasks
    pairs = {tuple(pair): weight for pair, weight in zip(task.pairs.tolist(), task.weights.tolist(), strict=True)}
    assert pairs == {(2, 3): 1.0, (3, 4): 1.0, (2, 4): IMPLIED_PAIR_WEIGHT}
    assert task.people.tolist() == PEOPLE[3:].tolist()


def test_a_limit_of_pairs_replaces_the_values_by_drawn_pairs() -> None:
    kept = np.ones(len(PEOPLE), np.bool_)
    [task] = make_training_set([replace(NAMED, max_pairs=40)], PEOPLE, ROWS, kept, seed=3).tasks
    assert len(task.pairs) == 40
    assert np.isnan(task.values).all()
    assert (task.same == (PEOPLE[task.pairs[:, 0]] == PEOPLE[task.pairs[:, 1]])).all()


def test_only_held_out_faces_search_and_distractors_make_it_harder() -> None:
    embedder = fit_wpca(~HELD_OUT)
    alone = measure(embedder)
    assert alone.ranked is not None
    assert set(alone.ranked.groups.astype(int)) == set(PEOPLE[HELD_OUT].tolist())
    among = measure(embedder, distractors=ROWS[~HELD_OUT])
    assert among.ranked is not None
    assert len(among.impostor) > len(alone.impostor)
    assert np.array_equal(among.genuine, alone.genuine)


def test_without_values_the_held_out_labels_are_measured() -> None:
    pairs = np.array([[0, 1], [0, 15], [5, 6]])
    measured = measure(fit_wpca(~HELD_OUT), make_examples(pairs, [True, False, True], values=False))
    assert measured.ranked is None
    assert len(measured.labelled) == 3
    assert (len(measured.genuine), len(measured.impostor)) == (1, 1)  # person 1, of face 5, is not held out
    assert measured.impostor_people.tolist() == [[0, 3]]


def test_a_task_is_calibrated_on_held_out_people_if_they_suffice_and_else_on_all_faces() -> None:
    embedder = fit_wpca(~HELD_OUT)
    measured = measure(embedder)
    held_out = calibrate(embedder, embedder, measured)
    learned = calibrate_tasks(embedder, [NAMED], PEOPLE, ROWS)
    few = replace(measured, genuine=measured.genuine[: MIN_PAIRS_PER_CLASS - 1])
    assert held_out.by_held_out == ("identity",)
    assert learned.by_held_out == calibrate(embedder, embedder, few).by_held_out == ()
    assert held_out.by_task["identity"].to_dict() != learned.by_task["identity"].to_dict()


def test_a_calibration_on_held_out_people_has_the_scale_of_the_fit_that_serves() -> None:
    embedder = fit_wpca(~HELD_OUT)
    calibrations = calibrate(cast(Embedder, Scaled(embedder, 3.0)), embedder, measure(embedder))
    serving, holdout = calibrations.by_task["identity"], calibrations.holdout["identity"]
    assert serving.probability(9 * np.array([1.0, 2.0])) == pytest.approx(holdout.probability(np.array([1.0, 2.0])))
    assert serving.threshold(0.1).distance == pytest.approx(9 * holdout.threshold(0.1).distance)


def calibrate(serving: Embedder, embedder: Embedder, measured: TaskMeasurement) -> TaskCalibrations:
    holdout = HoldoutFit(embedder, HELD_OUT, {"identity": measured})
    return calibrate_tasks(serving, [NAMED], PEOPLE, ROWS, holdout)


def test_strangers_are_searched_for_where_held_out_people_have_names() -> None:
    embedder = fit_wpca(~HELD_OUT)
    measured = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=PEOPLE)
    assert measured is not None
    [searches] = measured.strangers
    assert searches.people == len(np.unique(PEOPLE[HELD_OUT]))
    nobody_held_out = np.where(HELD_OUT, -1, PEOPLE)
    assert (
        measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=nobody_held_out)
        is None
    )


def test_people_whom_labels_joined_from_several_names_are_measured_and_the_others_alone() -> None:
    embedder, names = fit_wpca(~HELD_OUT), PEOPLE.copy()
    first = np.unique(PEOPLE[HELD_OUT])[0]
    names[np.flatnonzero(np.isin(PEOPLE, first))[0]] = PEOPLE.max() + 1
    measured = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=names)
    assert measured is not None
    count = len(np.unique(PEOPLE[HELD_OUT]))
    assert [searches.people for searches in measured.strangers] == [count + 1, count - 1]


def test_a_person_has_the_name_of_any_of_its_faces() -> None:
    """Faces that labels alone name are found as their person, so they are in the way of strangers too."""
    embedder = fit_wpca(~HELD_OUT)
    first_faces = np.unique(PEOPLE, return_index=True)[1]
    names = np.where(np.isin(np.arange(len(PEOPLE)), first_faces), -1, PEOPLE)
    by_label = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=names)
    by_name = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=PEOPLE)
    assert by_label is not None
    assert by_name is not None
    few, all_of_them = (np.array(m.strangers[0].distances) for m in (by_label, by_name))
    assert len(few) < len(all_of_them)
    assert np.abs(few[:, None] - all_of_them).min(axis=1).max() < 1e-6


@dataclass
class Scaled:
    """An embedder whose embeddings are `scale` times as long as another's."""

    embedder: Embedder
    scale: float

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.embedder.tasks

    @property
    def metric(self) -> Distance:
        return self.embedder.metric

    def embed(self, rows: Rows, task: str) -> Rows:
        return self.scale * self.embedder.embed(rows, task)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_distances_of_strangers_are_those_of_the_fit_that_serves(scale: float) -> None:
    embedder = fit_wpca(~HELD_OUT)
    serving = cast(Embedder, Scaled(embedder, scale))
    before = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], embedder, PEOPLE, ROWS, names=PEOPLE)
    after = measure_held_out_strangers([HoldoutFit(embedder, HELD_OUT)], serving, PEOPLE, ROWS, names=PEOPLE)
    assert before is not None
    assert after is not None
    expected = scale**2 * np.array(before.strangers[0].distances)
    assert after.strangers[0].distances == pytest.approx(expected, rel=1e-5)


def test_strangers_do_not_move_away_with_learned_people_whom_the_other_fit_separates() -> None:
    """With 200 people, `clml` moved the nearest learned people from 0.47 to 0.79, and strangers from 0.33 to 0.28."""
    before = np.linspace(0.2, 1.8, 101)
    separated = np.maximum(before, 0.8)
    separated[:50] += np.linspace(-0.05, 0.0, 50)
    assert carry_over(np.array([0.3, np.inf]), before, separated) == pytest.approx([0.3, np.inf])
    assert carry_over(np.array([0.3]), before, 1.2 * before) == pytest.approx([0.36])


def test_distances_are_carried_over_by_the_stricter_line() -> None:
    pairs = np.linspace(2, 10, 500)
    assert carry_over(np.array([1.0, np.inf]), pairs, 3 * pairs - 7) == pytest.approx([-4, np.inf])
    nearer = np.where(pairs < 2.5, 1.5 * pairs - 1.25, pairs)  # below a share of 6 %
    slope = (6 - (1.5 * 2.4 - 1.25)) / (6 - 2.4)  # from a share of 5 % to the median
    assert carry_over(np.array([1.0]), pairs, nearer) == pytest.approx([2.35 - slope * 1.4])


@pytest.mark.parametrize("pairs", [np.linspace(2, 10, 49), np.full(500, 3.0), np.full(500, np.inf)])
def test_nothing_is_carried_over_by_too_few_pairs_or_such_as_are_all_alike(pairs: np.ndarray) -> None:
    assert carry_over(np.array([1.0]), pairs, pairs) is None


def test_impostor_pairs_are_those_of_a_held_out_person_and_a_learned_one() -> None:
    """Learned people lie farther from each other than strangers: 0.4 % of `clml`'s pairs passed at a stated 0.1 %."""
    embedder = fit_wpca(~HELD_OUT)
    impostors = calibrate(embedder, embedder, measure(embedder)).by_task["identity"].impostors
    distances = embedder.metric.distances(*(embedder.embed(ROWS[of], "identity") for of in (HELD_OUT, ~HELD_OUT)))
    assert impostors.distances[0] == pytest.approx(distances.min(), rel=1e-3)
    assert impostors.threshold(0.1).distance == pytest.approx(np.quantile(distances, 0.1), rel=0.02)
