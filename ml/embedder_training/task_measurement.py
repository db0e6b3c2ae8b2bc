"""Measure one model in one task on the held-out people."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.embedder_training.examples import TaskExamples
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.queries import choose_queries, list_impostor_people, rank_gallery
from ml.evaluation.retrieval import Ranked
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


@dataclass(frozen=True, eq=False)
class TaskMeasurement:
    """What one model reaches in one task.

    ranked: None where nothing could be ranked
    genuine, impostor, labelled: distances of held-out pairs, and of the labelled pairs
    impostor_people: (n, 2) numbers of the two people of each impostor pair
    searches: what identification decides by, for the task identity
    """

    examples: TaskExamples
    metric: Distance
    ranked: Ranked | None
    genuine: Distances
    impostor: Distances
    labelled: Distances
    impostor_people: Ids
    searches: SearchDistances | None = None


def measure_task(
    examples: TaskExamples,
    people: Ids,
    held_out: NDArray[np.bool_],
    embeddings: HoldoutEmbeddings,
    name: str,
) -> TaskMeasurement:
    """Search for the held-out faces among the other held-out faces and the distractors.

    people: (N,) number of each face's person; held_out: (N,) whether the person is held out
    name: of the protocol, in reports
    """
    metric, distractors = embeddings.metric, embeddings.distractors
    labelled = metric.pair_distances(embeddings.faces, embeddings.positions(examples.pairs))
    indices = np.flatnonzero(examples.member & held_out & ~np.isnan(examples.truth))
    rows = embeddings.faces[embeddings.positions(indices)]
    searched, truth = people[indices], examples.truth[indices]
    queries = choose_queries(searched)
    ranked = None
    if len(indices) >= 2:
        tolerance = examples.tolerance
        ranked = rank_gallery(rows, searched, truth, distractors, metric, queries, tolerance=tolerance, name=name)
    if ranked is None or not len(ranked.genuine) or not len(ranked.impostor):
        unseen = held_out[examples.pairs].any(axis=1)
        impostor = unseen & ~examples.same
        impostor_people = people[examples.pairs[impostor]]
        genuine = labelled[unseen & examples.same]
        return TaskMeasurement(examples, metric, None, genuine, labelled[impostor], labelled, impostor_people)
    pairs, same = draw_pairs(truth, examples.tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0))
    genuine, impostor_people = metric.pair_distances(rows, pairs[same]), list_impostor_people(ranked, searched)
    searches = None
    if examples.task == "identity":
        searches = SearchDistances.by_rule(rows, searched, distractors, queries, metric)
    distances = ranked.impostor.astype(np.float64)
    return TaskMeasurement(examples, metric, ranked, genuine, distances, labelled, impostor_people, searches)
