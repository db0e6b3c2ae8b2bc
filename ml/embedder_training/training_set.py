"""Make the training set of a fit: the kept faces, with labelled, implied and drawn pairs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ml.embedder_training.examples import TaskExamples
from ml.embedders.base import TaskData, TrainingSet
from ml.sampling.implied import derive_implied_pairs
from ml.sampling.value_pairs import are_among, draw_pairs
from ml.types import Ids, Rows

IMPLIED_PAIR_WEIGHT = 0.5
"""Weight of a pair that follows from labels, beside 1 for a labelled one."""


def make_training_set(
    tasks: Sequence[TaskExamples],
    people: Ids,
    rows: Rows,
    kept: NDArray[np.bool_],
    *,
    blocks: tuple[int, ...] = (),
    seed: int = 0,
) -> TrainingSet:
    """Make the training set of the faces that are kept. Labels of any other face are left out.

    people: (N,) number of each face's person; rows: (N, D) descriptors; kept: (N,)
    blocks: the widths of the descriptors in a row, as `TrainingSet` has them
    """
    kept = kept & np.any([t.member for t in tasks], axis=0)
    row_of = np.cumsum(kept) - 1
    task_data = [_make_task(t, people, kept, row_of, np.random.default_rng((seed, 2))) for t in tasks]
    return TrainingSet(rows if kept.all() else rows[kept], tuple(task_data), blocks)


def _make_task(
    examples: TaskExamples, people: Ids, kept: NDArray[np.bool_], row_of: Ids, rng: np.random.Generator
) -> TaskData:
    """Select the kept faces and their labelled pairs, and add implied and drawn pairs."""
    members = np.flatnonzero(examples.member & kept)
    is_kept = kept[examples.pairs].all(axis=1)
    pairs, same, weights = examples.pairs[is_kept], examples.same[is_kept], examples.weights[is_kept]
    values = examples.values[members]
    if examples.tolerance == 0 and len(pairs):
        more, more_same = derive_implied_pairs(pairs, same, rng)
        pairs, same = np.concatenate([pairs, more]), np.concatenate([same, more_same])
        weights = np.concatenate([weights, np.full(len(more), IMPLIED_PAIR_WEIGHT, np.float32)])
    if examples.max_pairs is not None:
        drawn_pairs, drawn_same = draw_pairs(values, examples.tolerance, examples.max_pairs, rng)
        is_new = ~are_among(members[drawn_pairs], pairs)
        pairs = np.concatenate([pairs, members[drawn_pairs][is_new]])
        same = np.concatenate([same, drawn_same[is_new]])
        weights = np.concatenate([weights, np.ones(int(is_new.sum()), np.float32)])
        values = np.full(len(members), np.nan)
    ends = row_of[pairs].reshape(-1, 2)
    return TaskData(examples.task, row_of[members], values, people[members], examples.tolerance, ends, same, weights)
