"""Three ways to choose the pairs to be labelled, in a gallery without names."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from app.learning.training_request import TrainingRequest
from ml.active_learning import MAX_SUGGESTIONS
from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration
from ml.embedder_training.training_set import IMPLIED_PAIR_WEIGHT
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.errors import TooFewPairs
from ml.sampling.implied import derive_implied_pairs
from ml.types import Ids, Rows
from papers.beyond.uncertain_pairs import MAX_ANSWERS, SAMPLE_FACES, LabelledDistances, choose_uncertain_pairs

MAX_ATTEMPTS = 50
HELD_OUT = float(TrainingRequest.model_fields["holdout"].default)
"""Share of the people who are held out for calibration, as in a training of the service."""

Fit = Callable[[TrainingSet], Embedder]
"""Raises TooFewPairs."""


@dataclass(eq=False)
class Labels:
    """The pairs labelled so far. rows: (N, D) of the gallery; people: (N,) true people, used only to label pairs"""

    rows: Rows
    people: Ids
    rng: np.random.Generator
    pairs: Ids = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def same(self) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self.people[self.pairs[:, 0]] == self.people[self.pairs[:, 1]]
        return same

    def add(self, pairs: Ids, limit: int) -> None:
        """Label the first `limit` of these pairs that are not labelled yet."""
        self.pairs = np.concatenate([self.pairs, self._fresh(np.sort(pairs, axis=1))[:limit]])

    def training_set(self, without: NDArray[np.bool_] | None = None) -> TrainingSet:
        """Make a training set of the labelled pairs and those that follow from them, as the service does.

        without: (N,) bool, faces to leave out
        """
        n = len(self.rows)
        kept = ~np.zeros(n, np.bool_) if without is None else ~without
        inside = kept[self.pairs].all(axis=1)
        labelled, answers = self.pairs[inside], self.same[inside]
        more, alike = derive_implied_pairs(labelled, answers, self.rng)
        weights = np.concatenate([np.ones(len(labelled)), np.full(len(more), IMPLIED_PAIR_WEIGHT)]).astype(np.float32)
        pairs, same = np.concatenate([labelled, more]), np.concatenate([answers, alike])
        nobody, unknown = np.full(n, -1, np.int64), np.full(n, np.nan)
        return TrainingSet(self.rows, (TaskData("identity", np.arange(n), unknown, nobody, 0.0, pairs, same, weights),))

    def calibration(self, fit: Fit) -> Calibration | None:
        """Calibrate as the service does, on the labels of a fifth of the people, with a fit to the others.

        Returns None if there are too few labels for the fit or for the calibration.
        """
        held = self._held_out()
        try:
            model, judged = fit(self.training_set(without=held)), held[self.pairs].any(axis=1)
        except TooFewPairs:
            return None
        pairs, same = self.pairs[judged], self.same[judged]
        if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
            return None
        faces, at = np.unique(pairs, return_inverse=True)
        distances = model.metric.pair_distances(model.embed(self.rows[faces]), at.reshape(-1, 2))
        return Calibration.fit(distances[same], distances[~same])

    def _held_out(self) -> NDArray[np.bool_]:
        """Return (N,) the faces of a fifth of the known people; faces joined by "same" labels are one person."""
        n, (first, second) = len(self.rows), self.pairs[self.same].T
        graph = coo_array((np.ones(len(first)), (first, second)), shape=(n, n))
        count, person = connected_components(graph, directed=False)
        held_out: NDArray[np.bool_] = np.random.default_rng(2).random(count)[person] < HELD_OUT
        return held_out

    def _fresh(self, pairs: Ids) -> Ids:
        """Return the pairs that are not labelled yet, each once, in the given order."""
        n = len(self.rows)
        codes = pairs[:, 0] * n + pairs[:, 1]
        first = np.sort(np.unique(codes, return_index=True)[1])
        first = first[~np.isin(codes[first], self.pairs[:, 0] * n + self.pairs[:, 1])]
        fresh: Ids = pairs[first]
        return fresh


Ask = Callable[[Labels, Embedder, Fit, int], None]
"""Labels `count` more pairs, chosen by the current model; called as (labels, model, fit, count)."""


def by_chance(labels: Labels, model: Embedder, fit: Fit, count: int) -> None:
    """Label pairs of any two faces."""
    _draw(labels, len(labels.pairs) + count, lambda n: labels.rng.integers(0, len(labels.rows), (n, 2)))


def half_the_same(labels: Labels, model: Embedder, fit: Fit, count: int) -> None:
    """Label half the pairs from one person, chosen by somebody who knows the gallery, and half from two people."""
    people, rng, asked_before = labels.people, labels.rng, len(labels.pairs)
    several = np.flatnonzero(np.bincount(people) > 1)

    def strangers(n: int) -> Ids:
        ends = rng.integers(0, len(people), (n, 2))
        different: Ids = ends[people[ends[:, 0]] != people[ends[:, 1]]]
        return different

    _draw(labels, asked_before + count // 2, lambda n: _two_of(rng.choice(several, n), people, rng))
    _draw(labels, asked_before + count, strangers)


def _draw(labels: Labels, wanted: int, pairs: Callable[[int], Ids]) -> None:
    """Draw until there are `wanted` pairs, or no new ones are found."""
    for _ in range(MAX_ATTEMPTS):
        if len(labels.pairs) >= wanted:
            return
        ends = pairs(2 * wanted)
        labels.add(ends[ends[:, 0] != ends[:, 1]], wanted - len(labels.pairs))


def suggested(labels: Labels, model: Embedder, fit: Fit, count: int) -> None:
    """Label the most uncertain pairs of a random sample, request by request: the service's earlier rule."""
    embedded = model.embed(labels.rows)
    calibration = labels.calibration(fit) if len(labels.pairs) else None
    wanted = len(labels.pairs) + count
    while len(labels.pairs) < wanted:
        some = np.sort(labels.rng.permutation(len(embedded))[:SAMPLE_FACES])
        labelled = _within(labels.pairs, some, len(embedded))
        limit = min(MAX_SUGGESTIONS, wanted - len(labels.pairs))
        heeded = labels.rng.permutation(len(labels.pairs))[:MAX_ANSWERS]
        answers = LabelledDistances(model.metric.pair_distances(embedded, labels.pairs[heeded]), labels.same[heeded])
        unknown = np.full(len(some), -1, np.int64)
        pairs, _ = choose_uncertain_pairs(embedded[some], unknown, model.metric, calibration, answers, labelled, limit)
        if not len(pairs):
            return
        labels.add(some[pairs], limit)


def _two_of(person: Ids, people: Ids, rng: np.random.Generator) -> Ids:
    """Draw two different photos of each of these people: (P, 2)."""
    order = np.argsort(people, kind="stable")
    first = np.searchsorted(people[order], person, "left")
    photos = np.searchsorted(people[order], person, "right") - first
    one = rng.integers(0, photos)
    other = (one + rng.integers(1, photos)) % photos
    pairs: Ids = np.stack([order[first + one], order[first + other]], axis=1)
    return pairs


def _within(pairs: Ids, some: Ids, n: int) -> set[tuple[int, int]]:
    """Return the pairs whose faces are both in `some`, as positions in it."""
    position = np.full(n, -1, np.int64)
    position[some] = np.arange(len(some))
    at = position[pairs]
    return {(a, b) for a, b in at[(at >= 0).all(axis=1)].tolist()}


PAIR_SELECTIONS: dict[str, Ask] = {"any two faces": by_chance, "half the same": half_the_same, "suggested": suggested}
