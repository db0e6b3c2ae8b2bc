"""CelebA10k as a training set for LFW: without the people who look like somebody in LFW."""

import numpy as np

from app.cli.datasets.export import build_training_set
from ml.embedders.base import TaskData, TrainingSet
from papers.harness.run_context import RunContext
from papers.manifolds.people_split import LOOKALIKE_COSINE, split_people

ABOUT = {"fitted on": "celeba", "without": f"look-alikes from {LOOKALIKE_COSINE}"}
MIN_PHOTOS = 2


def is_available(context: RunContext) -> bool:
    """Whether CelebA10k and the network that finds look-alikes are available."""
    return context.photos.has("celeba") and context.photos.has_model


def people(context: RunContext, features: str) -> TrainingSet:
    """Return CelebA10k by its identities, without people who look like somebody in LFW."""
    kept, names = split_people(context.photos, MIN_PHOTOS).taught, context.photos.names("celeba")
    made = build_training_set(context.photos.rows("celeba", features)[kept], [names[i] for i in kept])
    return TrainingSet(made.rows, made.tasks, context.photos.blocks(features))


def together(first: TrainingSet, second: TrainingSet) -> TrainingSet:
    """Join two training sets with different people."""
    [a], [b] = first.tasks, second.tasks
    who = np.concatenate([a.people, b.people + a.people.max() + 1])
    rows = np.concatenate([first.rows, second.rows])
    return TrainingSet(rows, (TaskData(a.task, np.arange(len(rows)), who.astype(np.float64), who),), first.blocks)
