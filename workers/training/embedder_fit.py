"""From a snapshot and its descriptors to an embedder: who is held out, what is learned from, the fit."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from app.learning.plan import Plan
from ml import registry
from ml.embedders.base import Embedder, Progress, TaskData, TrainingSet
from ml.sampling.implied import implied
from ml.types import Ids, Rows
from workers.training.training_data import Facts, Snapshot

IMPLIED = 0.5
"""Weight of a pair that follows from labels, beside 1 for one that somebody looked at."""
STRANGERS = 0.5
"""Share held out of the people of whom no label speaks, where nothing but labels is learned from: it costs little."""
FEWEST = 2
"""People who must be held out for a report, and who must remain to learn from."""


def held_out(snapshot: Snapshot, share: float) -> NDArray[np.bool_]:
    """(N,) faces of the people held out: of each task's people those whose chance lies below the share.

    All False where a share of 0 was asked for, or no task has people enough.
    """
    held: set[int] = set()
    chance = dict(zip(snapshot.people.tolist(), snapshot.chance.tolist(), strict=True))
    for facts in snapshot.tasks if share else ():
        people = sorted(_searchable(facts, snapshot.people), key=lambda p: (chance[p], p))
        below = sum(chance[p] < share for p in people)
        if len(people) >= 2 * FEWEST:
            held.update(people[: min(max(below, FEWEST), len(people) - FEWEST)])
        if facts.derived == "labels":
            strangers = set(people) - set(snapshot.people[facts.pairs].ravel().tolist())
            held.update(p for p in strangers if chance[p] < max(share, STRANGERS))
    return np.isin(snapshot.people, sorted(held))


def _searchable(facts: Facts, people: Ids) -> list[int]:
    """The people of whom there is something to be found: for a person another photo, for other tasks any face; where
    nothing but labels is known, whoever is labelled."""
    known = people[facts.member & ~np.isnan(facts.truth)]
    if not len(known):
        return [int(n) for n in np.unique(people[facts.pairs])]
    numbers, counts = np.unique(known, return_counts=True)
    return [int(n) for n in numbers[counts >= (2 if facts.task == "identity" else 1)]]


def training_set(plan: Plan, snapshot: Snapshot, rows: Rows, kept: NDArray[np.bool_]) -> TrainingSet:
    """What may be learned from the faces kept. A label that touches any other face is left out.

    rows: (N, D), one a face of the snapshot; kept: (N,).
    """
    kept = kept & np.any([f.member for f in snapshot.tasks], axis=0)
    place = np.cumsum(kept) - 1
    tasks = [_task_data(f, snapshot.people, kept, place, np.random.default_rng((plan.seed, 2))) for f in snapshot.tasks]
    return TrainingSet(rows if kept.all() else rows[kept], tuple(tasks), plan.recipe.blocks)


def _task_data(facts: Facts, people: Ids, kept: NDArray[np.bool_], place: Ids, rng: np.random.Generator) -> TaskData:
    mine = np.flatnonzero(facts.member & kept)
    told = kept[facts.pairs].all(axis=1)
    pairs, same, weights = facts.pairs[told], facts.same[told], facts.weights[told]
    values = facts.values[mine]
    if facts.tolerance == 0 and len(pairs):
        more, alike = implied(pairs, same, rng)
        pairs, same = np.concatenate([pairs, more]), np.concatenate([same, alike])
        weights = np.concatenate([weights, np.full(len(more), IMPLIED, np.float32)])
    if facts.drawn is not None:
        first, alike = draw_pairs(values, facts.tolerance, facts.drawn, rng)
        fresh = ~_among(mine[first], pairs)
        pairs = np.concatenate([pairs, mine[first][fresh]])
        same = np.concatenate([same, alike[fresh]])
        weights = np.concatenate([weights, np.ones(int(fresh.sum()), np.float32)])
        values = np.full(len(mine), np.nan)
    return TaskData(
        facts.task, place[mine], values, people[mine], facts.tolerance, place[pairs].reshape(-1, 2), same, weights
    )


def draw_pairs(
    values: NDArray[np.float64], tolerance: float, wanted: int, rng: np.random.Generator
) -> tuple[Ids, NDArray[np.bool_]]:
    """At most `wanted` different pairs, (P, 2) places rising, and which are the same: half, if there are so many.

    Pairs of the same are drawn by value first, so that whoever has many faces does not rule.
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
        first = rng.choice(levels, 4 * wanted)
        ends = low[first] + rng.integers(0, 2**62, (2, len(first))) % (high - low)[first]
        alike = _different(order[ends.T])[: wanted // 2]
    apart = empty
    if len(order) > 1:
        ends = order[rng.integers(0, len(order), (4 * wanted, 2))]
        far = np.abs(values[ends[:, 0]] - values[ends[:, 1]]) > tolerance
        apart = _different(ends[far])[: wanted - wanted // 2]
    return np.concatenate([alike, apart]), np.repeat([True, False], [len(alike), len(apart)])


def _different(pairs: Ids) -> Ids:
    """Each pair once, in the order drawn; none of a face with itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return pairs[np.sort(first)]


def _among(pairs: Ids, others: Ids) -> NDArray[np.bool_]:
    told = {tuple(sorted(p)) for p in others.tolist()}
    return np.array([tuple(sorted(p)) in told for p in pairs.tolist()], np.bool_)


def fit(
    plan: Plan, data: TrainingSet, progress: Progress, *, before: Embedder | None, like: Embedder | None = None
) -> Embedder:
    """Learns, going on from `before` where there is one; given `like`, as that one found best, on everybody.

    Raises TooFewPairs, CannotGoOn, NotFinite, WrongShape, and whatever the progress raises.
    """
    options = dict(plan.options) | (like.refit_options() if like else {})
    made = cast(Embedder, registry.build("embedders", plan.method, **options))
    if before is not None:
        made.start_from(before)
    return made.fit(data, progress=progress)
