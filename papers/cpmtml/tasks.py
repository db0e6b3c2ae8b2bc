"""What 002 learns from: identities of LFW beside a second task, age or expression, and age beside identities."""

import csv
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.cli.datasets.export import build_training_set
from ml.embedders.base import TaskData, TrainingSet
from ml.evaluation.protocols import Protocol
from ml.types import Ids
from papers.harness.lab_fits import Lab, Train

PAIRS, AUXILIARY = 10_000, 40_000
MORE = 25_000
"""Identity pairs of Table 5."""
ALIKE = 3.0
"""Years apart at which two ages are still alike: most of the ages are estimates."""
AGE, MOOD, FER = "age", "expression", "expression, FER"
SETS = {AGE: "age", FER: "expression"}
"""Photos of a second task that are not LFW's."""
STAND_INS = (
    "age: UTKFace, 5,000 faces of 18 to 80 years, alike within 3 (for MORPH); "
    "expression: students' labels of LFW's own photos (for FACES), or FER-2013, 3,589 faces, where it says FER"
)


def possible(lab: Lab, aux: str) -> bool:
    """Whether the photos of a second task are here."""
    return aux not in SETS or lab.photos.has(SETS[aux])


def make_training_set(lab: Lab, features: str, aux: str) -> Train | None:
    """Identities of the protocol's training side, and the second task; None where there is no second one."""
    if not aux:
        return None

    def made(split: Protocol) -> TrainingSet:
        main = lab.identities(features, split)
        if aux == MOOD:
            mood = TaskData(MOOD, main.tasks[0].faces, load_expressions(lab)[split.training], main.tasks[0].people)
            return replace(main, tasks=(main.tasks[0], mood))
        return _joined(main, load_second_task(lab, features, aux))

    return made


def load_second_task(lab: Lab, features: str, aux: str) -> TrainingSet:
    """Faces that are not LFW's, each of a person of its own."""
    labels = [name.split("/")[0] for name in lab.photos.names(SETS[aux])]
    values = (
        np.array(labels, np.float64) if aux == AGE else np.unique(labels, return_inverse=True)[1].astype(np.float64)
    )
    faces = np.arange(len(labels))
    task = TaskData(aux, faces, values, faces, tolerance=ALIKE if aux == AGE else 0.0)
    return TrainingSet(lab.photos.rows(SETS[aux], features), (task,), lab.photos.blocks(features))


def ages_first(lab: Lab, features: str, chosen: Ids, *, both: bool) -> TrainingSet:
    """These faces of known age and, if both, the identities of all of LFW beside them."""
    aged, faces = load_second_task(lab, features, AGE), np.arange(len(chosen))
    task = replace(aged.tasks[0], faces=faces, values=aged.tasks[0].values[chosen], people=faces)
    main = TrainingSet(aged.rows[chosen], (task,), aged.blocks)
    if not both:
        return main
    return _joined(main, build_training_set(lab.photos.rows("lfw", features), lab.photos.names("lfw")))


def load_expressions(lab: Lab) -> NDArray[np.float64]:
    """(N,) the number of each LFW photo's expression, NaN where nobody told."""
    with (lab.photos.lfw.protocol / "lfw-expression.csv").open() as file:
        emotion_of_image = {row["image"]: row["emotion"] for row in csv.DictReader(file)}
    kinds = {kind: float(i) for i, kind in enumerate(sorted(set(emotion_of_image.values())))}
    return np.array(
        [kinds.get(emotion_of_image.get(name.split("/")[-1], ""), np.nan) for name in lab.photos.names("lfw")]
    )


def _joined(main: TrainingSet, other: TrainingSet) -> TrainingSet:
    """The other's task after the main one's. People of the one are nobody of the other."""
    n = len(main.rows)
    [task] = other.tasks
    moved = replace(task, faces=task.faces + n, people=np.full(len(task.people), -1))
    return TrainingSet(np.concatenate([main.rows, other.rows]), (*main.tasks, moved), main.blocks)
