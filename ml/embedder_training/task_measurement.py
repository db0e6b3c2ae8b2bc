"""Measure one model in its tasks on the held-out people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.embedder_training.examples import TaskExamples
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.queries import choose_queries, list_impostor_people, rank_gallery
from ml.evaluation.retrieval import Ranked
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows

Distances = NDArray[np.float64]

MAX_CALIBRATION_PAIRS = 20_000
"""Pairs drawn to calibrate on, half of them the same."""


@dataclass(frozen=True, eq=False)
class HoldoutEmbeddings:
    """Embeddings for one task, of the held-out and labelled faces and of all distractors.

    indices: (n,) of the faces in the training data, rising
    faces: (n, d); distractors: (m, d)
    """

    metric: Distance
    indices: Ids
    faces: Rows
    distractors: Rows

    def positions(self, indices: Ids) -> Ids:
        """Return the positions in `faces` of these indices of the training data."""
        return np.searchsorted(self.indices, indices)

    def split(self, parts: ProjectionParts, main: Self | None) -> dict[str, Self]:
        """Return the embeddings by the common and by the own part alone, without a part that has no numbers.

        parts: of the projection of this task; main: the embeddings for the first task
        """
        if not parts.is_sum:
            return {} if main is None else {"common": main}
        end = len(parts.common)
        columns = {"common": slice(0, end), "own": slice(end, self.faces.shape[1])}
        return {
            name: replace(self, faces=self.faces[:, part], distractors=self.distractors[:, part])
            for name, part in columns.items()
            if part.start < part.stop
        }


@dataclass(frozen=True, eq=False)
class PartMeasurement:
    """What one part of an embedding reaches.

    width: how many numbers it has; distances: (P,) of pairs drawn from the values; same: (P,) whether they are the same
    """

    width: int
    ranked: Ranked
    distances: Distances
    same: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TaskMeasurement:
    """What one model reaches in one task.

    ranked: None where nothing could be ranked
    genuine, impostor, labelled: distances of held-out pairs, and of the labelled pairs
    impostor_people: (n, 2) numbers of the two people of each impostor pair
    searches: what identification decides by, for the task identity
    parts: what the parts of the embedding reach, and all of it under `both`; empty where it was not split
    """

    examples: TaskExamples
    metric: Distance
    ranked: Ranked | None
    genuine: Distances
    impostor: Distances
    labelled: Distances
    impostor_people: Ids
    searches: SearchDistances | None = None
    parts: Mapping[str, PartMeasurement] = field(default_factory=dict)


def measure_tasks(
    tasks: Sequence[TaskExamples],
    people: Ids,
    held_out: NDArray[np.bool_],
    embeddings: Mapping[str, HoldoutEmbeddings],
    projections: Mapping[str, ProjectionParts] = MappingProxyType({}),
) -> dict[str, TaskMeasurement]:
    """Measure one model in each task of which there are embeddings.

    people: (N,) number of each face's person; held_out: (N,) whether the person is held out
    projections: of each task that the model has learned, the main one first, whose parts are measured too
    """
    measured, main = {}, embeddings.get(next(iter(projections), ""))
    for examples in tasks:
        of_task = embeddings.get(examples.task)
        if of_task is not None:
            parts = of_task.split(projections[examples.task], main) if projections else {}
            measured[examples.task] = _measure_task(examples, people, held_out, of_task, parts)
    return measured


def _measure_task(
    examples: TaskExamples,
    people: Ids,
    held_out: NDArray[np.bool_],
    embeddings: HoldoutEmbeddings,
    parts: Mapping[str, HoldoutEmbeddings],
) -> TaskMeasurement:
    """Search for the held-out faces among the other held-out faces and the distractors, with all and with each part.

    Where nothing can be ranked, only the labelled pairs are measured.
    """
    metric, variants = embeddings.metric, {**parts, "both": embeddings}
    by_labels = _measure_labels(examples, people, held_out, embeddings)
    indices = np.flatnonzero(examples.member & held_out & ~np.isnan(examples.truth))
    if len(indices) < 2:
        return by_labels
    searched, truth, at = people[indices], examples.truth[indices], embeddings.positions(indices)
    queries, tolerance = choose_queries(searched), examples.tolerance
    rankings = {
        name: rank_gallery(v.faces[at], searched, truth, v.distractors, metric, queries, tolerance=tolerance)
        for name, v in variants.items()
    }
    ranked, rows = rankings["both"], embeddings.faces[at]
    if not len(ranked.genuine) or not len(ranked.impostor):
        return by_labels
    impostor, impostor_people = ranked.impostor.astype(np.float64), list_impostor_people(ranked, searched)
    pairs, same = draw_pairs(truth, tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0))
    searches = None
    if examples.task == "identity":
        searches = SearchDistances.by_rule(rows, searched, embeddings.distractors, queries, metric)
    measured = {
        name: PartMeasurement(v.faces.shape[1], rankings[name], metric.pair_distances(v.faces[at], pairs), same)
        for name, v in variants.items()
        if parts
    }
    return replace(
        by_labels, ranked=ranked, genuine=metric.pair_distances(rows, pairs[same]), impostor=impostor,
        impostor_people=impostor_people, searches=searches, parts=measured,
    )  # fmt: skip


def _measure_labels(
    examples: TaskExamples, people: Ids, held_out: NDArray[np.bool_], embeddings: HoldoutEmbeddings
) -> TaskMeasurement:
    """Measure by the labelled pairs of held-out people alone."""
    metric, pairs = embeddings.metric, examples.pairs
    labelled = metric.pair_distances(embeddings.faces, embeddings.positions(pairs))
    unseen = held_out[pairs].any(axis=1)
    genuine, impostor = unseen & examples.same, unseen & ~examples.same
    return TaskMeasurement(
        examples, metric, None, labelled[genuine], labelled[impostor], labelled, people[pairs[impostor]]
    )
