"""An embedder is trained from arrays alone: the training set, the fit, the held-out people and the calibration."""

from dataclasses import replace

import numpy as np

from ml.calibration import MIN_PAIRS_PER_CLASS
from ml.embedder_training.calibrations import calibrate_tasks
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.fit import fit_embedder
from ml.embedder_training.held_out_strangers import measure_held_out_strangers
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
    held_out = calibrate_tasks(embedder, [NAMED], PEOPLE, ROWS, {"identity": measured})
    learned = calibrate_tasks(embedder, [NAMED], PEOPLE, ROWS, {})
    few = replace(measured, genuine=measured.genuine[: MIN_PAIRS_PER_CLASS - 1])
    assert held_out.by_held_out == ("identity",)
    assert learned.by_held_out == calibrate_tasks(embedder, [NAMED], PEOPLE, ROWS, {"identity": few}).by_held_out == ()
    assert held_out.by_task["identity"].to_dict() != learned.by_task["identity"].to_dict()


def test_strangers_are_searched_for_where_held_out_people_have_names() -> None:
    embedder, everybody = fit_wpca(~HELD_OUT), np.ones(len(PEOPLE), np.bool_)
    measured = measure_held_out_strangers(embedder, PEOPLE, HELD_OUT, ROWS, is_named=everybody)
    assert measured is not None
    [searches] = measured.strangers
    assert searches.people == len(np.unique(PEOPLE[HELD_OUT]))
    assert measure_held_out_strangers(embedder, PEOPLE, HELD_OUT, ROWS, is_named=~HELD_OUT) is None
