"""CelebA10k as a training set for LFW: without the people who look like somebody in LFW."""

import numpy as np

from app.cli.export import training_set
from app.cli.reproduce.lab import Lab
from app.cli.reproduce.manifolds.people import ALIKE, sides
from ml.embedders.base import TaskData, TrainingSet
from ml.types import Ids

ABOUT = {"fitted on": "celeba", "without": f"look-alikes from {ALIKE}"}
LEAST = 2


def people(lab: Lab, features: str) -> TrainingSet:
    """By its identities."""
    kept, names = apart(lab), lab.photos.names("celeba")
    made = training_set(lab.photos.rows("celeba", features)[kept], [names[i] for i in kept])
    return TrainingSet(made.rows, made.tasks, lab.photos.blocks(features))


def apart(lab: Lab) -> Ids:
    """Places of the photos of people none of whose faces looks like one of LFW; of all, without a recogniser."""
    if not lab.photos.has_model:
        return np.arange(len(lab.photos.names("celeba")))
    return sides(lab.photos, LEAST).taught


def together(first: TrainingSet, second: TrainingSet) -> TrainingSet:
    """Faces and identities of both; nobody is in both."""
    [a], [b] = first.tasks, second.tasks
    who = np.concatenate([a.people, b.people + a.people.max() + 1])
    rows = np.concatenate([first.rows, second.rows])
    return TrainingSet(rows, (TaskData(a.task, np.arange(len(rows)), who.astype(np.float64), who),), first.blocks)
