"""Measure the pairs of faces of a gallery: how near two photos of one person are, and those of two people."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration, ImpostorDistances, draw_impostor_pairs, draw_pairs_with, sample_genuine
from ml.distances import Distance
from ml.errors import TooFewPairs
from ml.types import Ids, Rows

MIN_COMPARED_PEOPLE = 30
"""The pairs of fewer people tell nothing of others."""


def fit_gallery_pairs(
    rows: Rows,
    people: Ids,
    is_distractor: NDArray[np.bool_],
    genuine_rows: Rows,
    genuine_people: Ids,
    metric: Distance,
    reference: Calibration | None = None,
) -> Calibration | None:
    """Fit a calibration to impostor pairs of a random sample, and to genuine pairs of people with several photos.

    Distractors may be unlike the people of the gallery, and farther from these than strangers are: if surely more pairs
    of the others are near, these count.

    rows, people, is_distractor: the (n, dim) sample; genuine_rows, genuine_people: faces of people with several photos
    reference: the model's own calibration, which tells the probabilities where too few people have several photos
    Returns None if there are too few pairs.
    """
    count = _count_pairs(rows)
    genuine = sample_genuine(genuine_rows, genuine_people, count // 4, 0, metric)
    impostor_pairs = draw_impostor_pairs(people, count, 0)
    impostor, others = metric.pair_distances(rows, impostor_pairs), np.where(is_distractor, -1, people)
    try:
        calibration = Calibration.fit(genuine, impostor, people[impostor_pairs])
    except TooFewPairs:
        if reference is None or not _are_enough(others):
            return None
        calibration = replace(reference, impostors=ImpostorDistances.of(impostor, people[impostor_pairs]))
    if is_distractor.any() and _are_enough(others):
        other_pairs = draw_impostor_pairs(others, count, 0)
        of_others = ImpostorDistances.of(metric.pair_distances(rows, other_pairs), others[other_pairs])
        return replace(calibration, impostors=calibration.impostors.join_if_nearer(of_others))
    return calibration


def measure_unlearned_pairs(
    rows: Rows, people: Ids, is_unlearned: NDArray[np.bool_], metric: Distance, with_everybody: bool
) -> ImpostorDistances | None:
    """Measure how near people from whom the model has not learned are, to each other or, by their share, to everybody.

    A model keeps people whom it has learned from farther apart than strangers.

    rows: (n, dim); people: (n,) whom each shows, -1 for nobody; is_unlearned: (n,) which show a person of this kind
    Returns None if these people are too few, or if the model has learned from nobody else.
    """
    unlearned, count = np.where(is_unlearned, people, -1), _count_pairs(rows)
    if not _are_enough(unlearned) or (unlearned == people).all():
        return None
    pairs = (
        draw_pairs_with(is_unlearned, people, count, 0) if with_everybody else draw_impostor_pairs(unlearned, count, 0)
    )
    return ImpostorDistances.of(metric.pair_distances(rows, pairs), people[pairs])


def _count_pairs(rows: Rows) -> int:
    return int(np.clip(2e8 / rows.shape[1], 20_000, 200_000))


def _are_enough(people: Ids) -> bool:
    """Return whether these show enough people, of whom -1 is none, to compare them with others."""
    return len(np.unique(people[people >= 0])) >= MIN_COMPARED_PEOPLE
