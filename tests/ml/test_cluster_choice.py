"""Which groups of faces are chosen as one question."""

import itertools

import numpy as np

from ml.active_learning import PairAnswers, choose_clusters
from ml.distances import EUCLIDEAN
from tests.ml.test_active_learning import answer_questions, draw_people

NO_ANSWERS = PairAnswers.empty()


def test_a_cluster_shows_mostly_one_person_and_no_face_twice() -> None:
    rows, owners = draw_people(60, 6, 0.2)
    unknown = np.full(len(rows), -1)
    questions = choose_clusters(rows, unknown, EUCLIDEAN, answer_questions(rows, owners, 2, 20), 30)
    assert len(questions) > 10
    faces = np.concatenate([question.faces for question in questions])
    assert len(np.unique(faces)) == len(faces)
    pure = [len(np.unique(owners[question.faces])) == 1 for question in questions]
    assert np.mean(pure) > 0.9
    assert all(3 <= len(question.faces) <= 12 for question in questions)
    assert all(a.value >= b.value for a, b in itertools.pairwise(questions))
    assert all(0.3 <= question.probability <= 1 for question in questions)


def test_a_cluster_that_is_answered_is_not_asked_again() -> None:
    rows, owners = draw_people(20, 5, 0.1)
    unknown = np.full(len(rows), -1)
    pairs = np.array([(i, j) for i in range(len(rows)) for j in range(i) if owners[i] == owners[j]])
    joined = PairAnswers(pairs, np.ones(len(pairs), np.bool_))
    assert all(len(np.unique(owners[q.faces])) > 1 for q in choose_clusters(rows, unknown, EUCLIDEAN, joined, 50))
    apart = PairAnswers(pairs[:10], np.zeros(10, np.bool_))
    for question in choose_clusters(rows, unknown, EUCLIDEAN, apart, 50):
        inside = np.isin(apart.pairs, question.faces).all(axis=1)
        assert not inside.any()


def test_a_cluster_never_joins_two_names_and_stays_within_the_limit() -> None:
    rows, owners = draw_people(10, 12, 0.05)
    subjects = np.where(np.arange(len(rows)) % 12 < 2, owners * 2 + np.arange(len(rows)) % 12, -1)
    questions = choose_clusters(rows, subjects, EUCLIDEAN, NO_ANSWERS, 50, max_faces=5)
    assert questions
    for question in questions:
        names = subjects[question.faces]
        assert len(np.unique(names[names >= 0])) <= 1
        assert len(question.faces) <= 5
    assert len(choose_clusters(rows, subjects, EUCLIDEAN, NO_ANSWERS, 2)) == 2


def test_a_large_known_group_is_shown_by_four_faces() -> None:
    rows, _ = draw_people(1, 12, 0.1)
    rows = np.concatenate([rows, draw_people(40, 3, 0.1, seed=1)[0]])
    chain = np.array([[k, k + 1] for k in range(9)])
    answers = PairAnswers(chain, np.ones(9, np.bool_))
    [question] = [
        q for q in choose_clusters(rows, np.full(len(rows), -1), EUCLIDEAN, answers, 99) if (q.faces < 12).any()
    ]
    assert (question.faces < 10).sum() == 4
    assert {10, 11} & set(question.faces.tolist())


def test_too_few_faces_make_no_cluster() -> None:
    for n in (0, 1, 2):
        rows = np.zeros((n, 2), np.float32)
        assert choose_clusters(rows, np.full(n, -1), EUCLIDEAN, NO_ANSWERS, 5) == []
