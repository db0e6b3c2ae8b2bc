"""The choice of pairs to label."""

import numpy as np
import pytest

from ml.active_learning import FaceGroups, PairAnswers, SameProbability, choose_pairs, find_candidates
from ml.active_learning.pair_choice import MIN_ANSWERS_PER_KIND, estimate_probabilities
from ml.distances import EUCLIDEAN, INNER_PRODUCT
from ml.types import Ids, Rows

ROWS = np.linspace(0, 1, 60, dtype=np.float32)[:, None] ** 2
"""Neighbours at ever larger distances."""
UNKNOWN = np.full(len(ROWS), -1)
NO_ANSWERS = PairAnswers.empty()


def draw_people(people: int, shots: int, spread: float, seed: int = 0) -> tuple[Rows, Ids]:
    """Draw faces of unit length around random centres: (people * shots, 16) and the person of each."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(people), shots)
    rows = rng.normal(size=(people, 16))[owners] + spread * rng.normal(size=(len(owners), 16))
    unit: Rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit, owners


def answer_questions(rows: Rows, owners: Ids, requests: int, limit: int) -> PairAnswers:
    """Ask and answer truthfully, request by request."""
    answers = NO_ANSWERS
    for _ in range(requests):
        pairs = choose_pairs(rows, np.full(len(rows), -1), EUCLIDEAN, answers, limit).pairs
        pairs = np.concatenate([answers.pairs, pairs])
        answers = PairAnswers(pairs, owners[pairs[:, 0]] == owners[pairs[:, 1]])
    return answers


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_both_kinds_of_answers_come_within_thirty_questions_on_strong_and_weak_descriptors(spread: float) -> None:
    for seed in range(10):
        rows, owners = draw_people(60, 4, spread, seed)
        answers = answer_questions(rows, owners, 3, 10)
        assert len(answers) == 30
        assert 0 < answers.same.sum() < 30


def test_enough_answers_of_both_kinds_for_a_training_come_soon() -> None:
    rows, owners = draw_people(150, 4, 0.1)
    answers = answer_questions(rows, owners, 5, 20)
    assert min(answers.same.sum(), (~answers.same).sum()) >= MIN_ANSWERS_PER_KIND


def test_pairs_are_chosen_that_are_likely_the_same_but_far_apart() -> None:
    rows, owners = draw_people(150, 4, 0.3)
    answers = answer_questions(rows, owners, 4, 20)
    chosen = choose_pairs(rows, np.full(len(rows), -1), EUCLIDEAN, answers, 20)
    assert (np.diff(chosen.values) <= 1e-12).all()
    candidates = find_candidates(rows, EUCLIDEAN)
    nearest = np.sort(candidates.distances)[:20]
    assert chosen.distances.mean() > 1.5 * nearest.mean()
    assert (owners[chosen.pairs[:, 0]] == owners[chosen.pairs[:, 1]]).mean() > 0.5


def test_pairs_that_follow_from_answers_are_not_asked() -> None:
    rows, _ = draw_people(1, 4, 0.1)
    answers = PairAnswers(np.array([[0, 1], [1, 2], [2, 3]]), np.array([True, True, False]))
    assert len(choose_pairs(rows, np.full(4, -1), EUCLIDEAN, answers, 9).pairs) == 0


def test_groups_join_the_faces_of_one_person_and_tell_different_people_apart() -> None:
    answers = PairAnswers(np.array([[0, 1], [2, 3], [3, 0]]), np.array([True, True, False]))
    groups = FaceGroups.join(7, answers, np.array([-1, -1, -1, -1, 8, 8, 9]))
    assert groups.sizes.tolist() == [2, 2, 2, 2, 2, 2, 1]
    decided = groups.are_decided(np.array([[0, 1], [1, 2], [0, 4], [4, 5], [5, 6]]))
    assert decided.tolist() == [True, True, False, True, False]


def test_a_face_is_chosen_twice_at_most_two_people_once_and_no_labelled_pair_again() -> None:
    subjects = np.arange(len(ROWS)) // 3
    chosen = choose_pairs(ROWS, subjects, EUCLIDEAN, NO_ANSWERS, 20)
    assert len(chosen.pairs) == 20
    assert np.bincount(chosen.pairs.ravel()).max() <= 2
    people = np.sort(subjects[chosen.pairs], axis=1)
    assert len(np.unique(people, axis=0)) == len(chosen.pairs)
    expected = ((ROWS[chosen.pairs[:, 0]] - ROWS[chosen.pairs[:, 1]]) ** 2).sum(1)
    np.testing.assert_allclose(chosen.distances, expected, atol=1e-6)
    answers = PairAnswers(chosen.pairs, np.ones(20, np.bool_))
    again = choose_pairs(ROWS, subjects, EUCLIDEAN, answers, 20).pairs
    assert not {tuple(p) for p in chosen.pairs.tolist()} & {tuple(p) for p in again.tolist()}


def test_pairs_of_two_named_faces_come_last() -> None:
    unnamed = choose_pairs(ROWS, UNKNOWN, EUCLIDEAN, NO_ANSWERS, 1).pairs[0]
    subjects = UNKNOWN.copy()
    subjects[unnamed] = (1, 2)
    assert choose_pairs(ROWS, subjects, EUCLIDEAN, NO_ANSWERS, 1).pairs[0].tolist() != unnamed.tolist()
    everybody = choose_pairs(ROWS[:6], np.arange(6), EUCLIDEAN, NO_ANSWERS, 3).pairs
    assert len(everybody) == 3


def test_names_tell_how_likely_a_pair_is_the_same() -> None:
    rows, owners = draw_people(40, 4, 0.1)
    subjects = np.where(np.arange(len(rows)) < 80, owners, -1)
    candidates = find_candidates(rows, EUCLIDEAN)
    probabilities = estimate_probabilities(candidates, subjects, NO_ANSWERS)
    same = owners[candidates.pairs[:, 0]] == owners[candidates.pairs[:, 1]]
    unnamed = (subjects[candidates.pairs] < 0).all(axis=1)
    assert probabilities[unnamed & same].min() > 0.9
    assert probabilities[unnamed & ~same].mean() < 0.05


def test_the_estimated_probability_follows_the_answers_and_falls_with_the_score() -> None:
    candidates = np.linspace(0, 10, 500)
    scores = np.linspace(0, 10, 60)
    model = SameProbability.fit(scores, scores < 4, candidates)
    predicted = model.predict(np.array([0.0, 3.0, 4.0, 5.0, 10.0]))
    assert (np.diff(predicted) < 0).all()
    assert predicted[1] > 0.7 > 0.3 > predicted[3]
    assert SameProbability.fit(np.empty(0), np.empty(0, np.bool_), candidates).predict(candidates)[0] > 0.7
    all_same = SameProbability.fit(scores[:20], np.ones(20, np.bool_), candidates).predict(candidates)
    assert (np.diff(all_same) < 0).all()


def test_a_near_pair_in_a_crowd_scores_worse_than_the_same_distance_between_loners() -> None:
    crowd = np.linspace(0, 1, 30)[:, None]
    loners = np.array([[50.0], [50.1]])
    candidates = find_candidates(np.concatenate([crowd, loners]).astype(np.float32), EUCLIDEAN)
    score = {tuple(pair): value for pair, value in zip(candidates.pairs.tolist(), candidates.scores, strict=True)}
    assert score[(30, 31)] < score[(10, 13)]


def test_inner_products_give_values_that_are_not_negative() -> None:
    rows, _ = draw_people(20, 3, 0.3)
    chosen = choose_pairs(rows, np.full(60, -1), INNER_PRODUCT, NO_ANSWERS, 10)
    assert len(chosen.pairs) == 10
    assert (chosen.values >= 0).all()


def test_fewer_than_two_faces_have_no_pairs() -> None:
    for n in (0, 1):
        chosen = choose_pairs(ROWS[:n], UNKNOWN[:n], EUCLIDEAN, NO_ANSWERS, 5)
        assert chosen.pairs.shape == (0, 2)
        assert chosen.distances.shape == (0,)
