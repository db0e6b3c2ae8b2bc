"""Measure one model in one task on the held-out people."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.queries import choose_queries, list_impostor_people, rank_gallery
from ml.evaluation.retrieval import Ranked
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids
from workers.training.holdout_embeddings import HoldoutEmbeddings
from workers.training.prepared_data import PreparedData
from workers.training.training_data import TaskExamples

Distances = NDArray[np.float64]

MAX_CALIBRATION_PAIRS = 20_000
"""Pairs drawn to calibrate on, half of them the same."""


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


def measure_task(prepared: PreparedData, examples: TaskExamples, embeddings: HoldoutEmbeddings) -> TaskMeasurement:
    """Search for the held-out faces among the other held-out faces and the distractors."""
    metric, distractors = embeddings.metric, embeddings.distractors
    labelled = metric.pair_distances(embeddings.faces, embeddings.positions(examples.pairs))
    indices = np.flatnonzero(examples.member & prepared.held_out & ~np.isnan(examples.truth))
    rows = embeddings.faces[embeddings.positions(indices)]
    people, truth = prepared.data.people[indices], examples.truth[indices]
    ranked = None
    if len(indices) >= 2:
        name, tolerance = prepared.plan.protocol_name, examples.tolerance
        ranked = rank_gallery(rows, people, truth, distractors, metric, tolerance=tolerance, name=name)
    if ranked is None or not len(ranked.genuine) or not len(ranked.impostor):
        unseen = prepared.held_out[examples.pairs].any(axis=1)
        impostor = unseen & ~examples.same
        impostor_people = prepared.data.people[examples.pairs[impostor]]
        genuine = labelled[unseen & examples.same]
        return TaskMeasurement(examples, metric, None, genuine, labelled[impostor], labelled, impostor_people)
    pairs, same = draw_pairs(truth, examples.tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0))
    genuine, impostor_people = metric.pair_distances(rows, pairs[same]), list_impostor_people(ranked, people)
    searches = None
    if examples.task == "identity":
        searches = SearchDistances.by_rule(rows, people, distractors, choose_queries(people), metric)
    distances = ranked.impostor.astype(np.float64)
    return TaskMeasurement(examples, metric, ranked, genuine, distances, labelled, impostor_people, searches)
