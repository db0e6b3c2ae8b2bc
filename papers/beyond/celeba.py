"""CelebA10k as a training set for LFW: without the people who look like somebody in LFW."""

import numpy as np

from app.cli.datasets.export import build_training_set
from ml.embedders.base import TaskData, TrainingSet
from papers.harness.lab_fits import Lab
from papers.manifolds.people_split import ALIKE, split_people

ABOUT = {"fitted on": "celeba", "without": f"look-alikes from {ALIKE}"}
LEAST = 2


def there(lab: Lab) -> bool:
    """Not without the network that tells who looks alike."""
    return lab.photos.has("celeba") and lab.photos.has_model


def people(lab: Lab, features: str) -> TrainingSet:
    """By its identities; nobody of whom a face looks like one of LFW."""
    kept, names = split_people(lab.photos, LEAST).taught, lab.photos.names("celeba")
    made = build_training_set(lab.photos.rows("celeba", features)[kept], [names[i] for i in kept])
    return TrainingSet(made.rows, made.tasks, lab.photos.blocks(features))


def together(first: TrainingSet, second: TrainingSet) -> TrainingSet:
    """Faces and identities of both; nobody is in both."""
    [a], [b] = first.tasks, second.tasks
    who = np.concatenate([a.people, b.people + a.people.max() + 1])
    rows = np.concatenate([first.rows, second.rows])
    return TrainingSet(rows, (TaskData(a.task, np.arange(len(rows)), who.astype(np.float64), who),), first.blocks)
