"""The training data of 002: identities of LFW with age or expression as a second task, and age with identities."""

import csv
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.cli.datasets.export import build_training_set
from ml.embedders.base import TaskData, TrainingSet
from ml.evaluation.protocols import Protocol
from ml.types import Ids
from papers.harness.run_context import RunContext, Train

PAIRS, AUXILIARY_PAIRS = 10_000, 40_000
TABLE_5_PAIRS = 25_000
"""Identity pairs of Table 5."""
AGE_TOLERANCE_YEARS = 3.0
"""Largest difference in years of ages that count as the same; most ages are estimates."""
AGE, MOOD, FER = "age", "expression", "expression, FER"
PHOTO_SETS = {AGE: "age", FER: "expression"}
"""The photo sets of second tasks that are not LFW."""
STAND_INS = (
    "age: UTKFace, 5,000 faces of 18 to 80 years, alike within 3 (for MORPH); "
    "expression: students' labels of LFW's own photos (for FACES), or FER-2013, 3,589 faces, where it says FER"
)


def possible(context: RunContext, aux: str) -> bool:
    """Whether the photos of a second task are available."""
    return aux not in PHOTO_SETS or context.photos.has(PHOTO_SETS[aux])


def make_training_set(context: RunContext, features: str, aux: str) -> Train | None:
    """Return a function that makes the training set of identities and the second task; None without a second task."""
    if not aux:
        return None

    def made(split: Protocol) -> TrainingSet:
        main = context.identities(features, split)
        if aux == MOOD:
            mood = TaskData(MOOD, main.tasks[0].faces, load_expressions(context)[split.training], main.tasks[0].people)
            return replace(main, tasks=(main.tasks[0], mood))
        return _join_tasks(main, load_second_task(context, features, aux))

    return made


def load_second_task(context: RunContext, features: str, aux: str) -> TrainingSet:
    """Load the faces of a second task; each counts as a person of its own."""
    labels = [name.split("/")[0] for name in context.photos.names(PHOTO_SETS[aux])]
    values = (
        np.array(labels, np.float64) if aux == AGE else np.unique(labels, return_inverse=True)[1].astype(np.float64)
    )
    faces = np.arange(len(labels))
    task = TaskData(aux, faces, values, faces, tolerance=AGE_TOLERANCE_YEARS if aux == AGE else 0.0)
    return TrainingSet(context.photos.rows(PHOTO_SETS[aux], features), (task,), context.photos.blocks(features))


def ages_first(context: RunContext, features: str, chosen: Ids, *, both: bool) -> TrainingSet:
    """Return these faces of known age and, if `both`, the identities of LFW as the second task."""
    aged, faces = load_second_task(context, features, AGE), np.arange(len(chosen))
    task = replace(aged.tasks[0], faces=faces, values=aged.tasks[0].values[chosen], people=faces)
    main = TrainingSet(aged.rows[chosen], (task,), aged.blocks)
    if not both:
        return main
    return _join_tasks(main, build_training_set(context.photos.rows("lfw", features), context.photos.names("lfw")))


def load_expressions(context: RunContext) -> NDArray[np.float64]:
    """Load the (N,) expression of each LFW photo as a number, NaN if unknown."""
    with (context.photos.lfw.protocol / "lfw-expression.csv").open() as file:
        emotion_of_image = {row["image"]: row["emotion"] for row in csv.DictReader(file)}
    kinds = {kind: float(i) for i, kind in enumerate(sorted(set(emotion_of_image.values())))}
    return np.array(
        [kinds.get(emotion_of_image.get(name.split("/")[-1], ""), np.nan) for name in context.photos.names("lfw")]
    )


def _join_tasks(main: TrainingSet, other: TrainingSet) -> TrainingSet:
    """Join two training sets with different people: the main task first."""
    n = len(main.rows)
    [task] = other.tasks
    moved = replace(task, faces=task.faces + n, people=np.full(len(task.people), -1))
    return TrainingSet(np.concatenate([main.rows, other.rows]), (*main.tasks, moved), main.blocks)
