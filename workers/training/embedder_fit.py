"""Fit an embedder on training data: hold people out, make the training set, fit."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from app.learning.plan import Plan
from ml import registry
from ml.embedders.base import Embedder, Progress, TaskData, TrainingSet
from ml.sampling.implied import derive_implied_pairs
from ml.types import Ids, Rows
from workers.training.training_data import TaskExamples, TrainingData

IMPLIED_PAIR_WEIGHT = 0.5
"""Weight of a pair that follows from labels, beside 1 for a labelled one."""
UNLABELLED_HOLDOUT_SHARE = 0.5
"""Share held out of the people without labels, where only labels are learned from: holding them out costs little."""
MIN_PEOPLE_PER_SIDE = 2
"""People who must be held out for a report, and who must remain to learn from."""


def choose_held_out_faces(data: TrainingData, share: float) -> NDArray[np.bool_]:
    """Return (N,) which faces are held out: of each task's people, those whose draw is below the share.

    Nobody is held out where the share is 0, or no task has enough people.
    """
    held_out: set[int] = set()
    draws = dict(zip(data.people.tolist(), data.holdout_draw.tolist(), strict=True))
    for examples in data.tasks if share else ():
        people = sorted(_list_searchable(examples, data.people), key=lambda p: (draws[p], p))
        below = sum(draws[p] < share for p in people)
        if len(people) >= 2 * MIN_PEOPLE_PER_SIDE:
            held_out.update(people[: min(max(below, MIN_PEOPLE_PER_SIDE), len(people) - MIN_PEOPLE_PER_SIDE)])
        if examples.derived == "labels":
            unlabelled = set(people) - set(data.people[examples.pairs].ravel().tolist())
            held_out.update(p for p in unlabelled if draws[p] < max(share, UNLABELLED_HOLDOUT_SHARE))
    return np.isin(data.people, sorted(held_out))


def _list_searchable(examples: TaskExamples, people: Ids) -> list[int]:
    """List the people with something to find: for identity two faces, for other tasks one with a value; where only
    labels are known, everybody who is labelled."""
    known = people[examples.member & ~np.isnan(examples.truth)]
    if not len(known):
        return [int(n) for n in np.unique(people[examples.pairs])]
    numbers, counts = np.unique(known, return_counts=True)
    return [int(n) for n in numbers[counts >= (2 if examples.task == "identity" else 1)]]


def make_training_set(plan: Plan, data: TrainingData, rows: Rows, kept: NDArray[np.bool_]) -> TrainingSet:
    """Make the training set of the faces that are kept. Labels of any other face are left out.

    rows: (N, D) descriptors; kept: (N,)
    """
    kept = kept & np.any([t.member for t in data.tasks], axis=0)
    row_of = np.cumsum(kept) - 1
    tasks = [_make_task(t, data.people, kept, row_of, np.random.default_rng((plan.seed, 2))) for t in data.tasks]
    return TrainingSet(rows if kept.all() else rows[kept], tuple(tasks), plan.recipe.blocks)


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
        is_new = ~_are_among(members[drawn_pairs], pairs)
        pairs = np.concatenate([pairs, members[drawn_pairs][is_new]])
        same = np.concatenate([same, drawn_same[is_new]])
        weights = np.concatenate([weights, np.ones(int(is_new.sum()), np.float32)])
        values = np.full(len(members), np.nan)
    ends = row_of[pairs].reshape(-1, 2)
    return TaskData(examples.task, row_of[members], values, people[members], examples.tolerance, ends, same, weights)


def draw_pairs(
    values: NDArray[np.float64], tolerance: float, limit: int, rng: np.random.Generator
) -> tuple[Ids, NDArray[np.bool_]]:
    """Draw at most `limit` different pairs, half of them the same if there are so many; returns pairs and sameness.

    values: (N,), NaN unknown; returns (P, 2) indices, the smaller first, and (P,). A value is drawn before the faces,
    so that people with many faces do not dominate.
    """
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    ranked = values[order]
    low, high = (
        np.searchsorted(ranked, ranked - tolerance, "left"),
        np.searchsorted(ranked, ranked + tolerance, "right"),
    )
    levels = np.unique(ranked, return_index=True)[1]
    levels = levels[(high - low)[levels] > 1]
    empty = np.empty((0, 2), np.int64)
    alike = empty
    if len(levels):
        first = rng.choice(levels, 4 * limit)
        ends = low[first] + rng.integers(0, 2**62, (2, len(first))) % (high - low)[first]
        alike = _unique_pairs(order[ends.T])[: limit // 2]
    different = empty
    if len(order) > 1:
        ends = order[rng.integers(0, len(order), (4 * limit, 2))]
        far = np.abs(values[ends[:, 0]] - values[ends[:, 1]]) > tolerance
        different = _unique_pairs(ends[far])[: limit - limit // 2]
    return np.concatenate([alike, different]), np.repeat([True, False], [len(alike), len(different)])


def _unique_pairs(pairs: Ids) -> Ids:
    """Return each pair once, in the order drawn, without those of a face with itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return pairs[np.sort(first)]


def _are_among(pairs: Ids, others: Ids) -> NDArray[np.bool_]:
    known = {tuple(sorted(p)) for p in others.tolist()}
    return np.array([tuple(sorted(p)) in known for p in pairs.tolist()], np.bool_)


def fit_embedder(
    plan: Plan, data: TrainingSet, progress: Progress, *, start: Embedder | None, like: Embedder | None = None
) -> Embedder:
    """Fit the plan's method, from `start` where there is one.

    like: an embedder fitted without the held-out people, whose choices (such as the number of steps) are repeated
    Raises TooFewPairs, CannotGoOn, NotFinite, WrongShape, and whatever the progress raises.
    """
    options = dict(plan.options) | (like.refit_options() if like else {})
    embedder = cast(Embedder, registry.build("embedders", plan.method, **options))
    if start is not None:
        embedder.start_from(start)
    return embedder.fit(data, progress=progress)
