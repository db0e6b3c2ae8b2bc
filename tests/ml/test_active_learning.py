"""The choice of pairs to label."""

from collections.abc import Sequence

import numpy as np

from ml.active_learning import LabelledDistances, choose_pairs
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN

ROWS = np.linspace(0, 1, 60, dtype=np.float32)[:, None] ** 2
"""Neighbours at ever larger distances."""
UNKNOWN = np.full(len(ROWS), -1)
NO_ANSWERS = LabelledDistances(np.empty(0), np.empty(0, np.bool_))


def test_nearer_pairs_are_chosen_where_few_answers_were_same() -> None:
    calibration = Calibration.fit(np.linspace(0, 0.004, 200), np.linspace(0.001, 0.01, 200))

    def mean_distance(same: Sequence[bool]) -> float:
        answers = LabelledDistances(np.zeros(len(same)), np.array(same, np.bool_))
        return float(np.mean(choose_pairs(ROWS, UNKNOWN, EUCLIDEAN, calibration, answers, set(), 10)[1]))

    few, many = mean_distance([False] * 18 + [True] * 2), mean_distance([False] * 2 + [True] * 18)
    assert few < mean_distance([]) < many


def test_without_a_calibration_pairs_near_the_best_threshold_of_the_answers_are_chosen() -> None:
    threshold = float(((ROWS[29] - ROWS[31]) ** 2).sum())
    labelled = threshold * np.linspace(0.5, 1.5, 20)
    answers = LabelledDistances(labelled, labelled < threshold)
    after, before = (
        choose_pairs(ROWS, UNKNOWN, EUCLIDEAN, None, each_answers, set(), 10)[1]
        for each_answers in (answers, NO_ANSWERS)
    )
    assert np.abs(after - threshold).max() < np.abs(before - threshold).min()


def test_a_face_is_chosen_twice_at_most_two_people_once_and_no_labelled_pair_again() -> None:
    subjects = np.arange(len(ROWS)) // 3
    pairs, distances = choose_pairs(ROWS, subjects, EUCLIDEAN, None, NO_ANSWERS, set(), 20)
    assert len(pairs) == 20
    assert np.bincount(pairs.ravel()).max() <= 2
    people = np.sort(subjects[pairs], axis=1)
    assert len(np.unique(people, axis=0)) == len(pairs)
    np.testing.assert_allclose(distances, ((ROWS[pairs[:, 0]] - ROWS[pairs[:, 1]]) ** 2).sum(1), atol=1e-6)
    labelled = {(int(a), int(b)) for a, b in pairs}
    again = choose_pairs(ROWS, subjects, EUCLIDEAN, None, NO_ANSWERS, labelled, 20)[0]
    assert not labelled & {(int(a), int(b)) for a, b in again}


def test_a_pair_of_two_known_people_needs_to_be_less_certain() -> None:
    unnamed = choose_pairs(ROWS, UNKNOWN, EUCLIDEAN, None, NO_ANSWERS, set(), 1)[0][0]
    subjects = UNKNOWN.copy()
    subjects[unnamed] = (1, 2)
    assert choose_pairs(ROWS, subjects, EUCLIDEAN, None, NO_ANSWERS, set(), 1)[0][0].tolist() != unnamed.tolist()


def test_fewer_than_two_faces_have_no_pairs() -> None:
    for n in (0, 1):
        pairs, distances = choose_pairs(ROWS[:n], UNKNOWN[:n], EUCLIDEAN, None, NO_ANSWERS, set(), 5)
        assert pairs.shape == (0, 2)
        assert distances.shape == (0,)
