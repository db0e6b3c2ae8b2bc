"""The measurement of what learning costs: labels, worst impostors, searches, and the rows of its table."""

import numpy as np
import pytest

from ml.embedders.cosine import Cosine
from ml.evaluation.protocols import Protocol
from papers.beyond.mixed_conditions import MixedSplit, find_worst_impostors
from papers.beyond.safe_learning import SafeFit, fit_split, make_row

PEOPLE, PHOTOS = 60, 4


@pytest.fixture
def split() -> MixedSplit:
    """Forty people to learn from and twenty to search for; degraded photos are shifted, all in the same direction."""
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(PEOPLE), PHOTOS)
    clean = (rng.normal(size=(PEOPLE, 20))[people] + 0.7 * rng.normal(size=(len(people), 20))).astype(np.float32)
    shift = np.zeros(20, np.float32)
    shift[:2] = 6.0
    training, unseen = np.flatnonzero(people < 40), np.flatnonzero(people >= 40)
    queries = unseen[::PHOTOS]
    protocol = Protocol("disjoint-0", people, training, queries, np.setdiff1d(unseen, queries))
    return MixedSplit(protocol, clean, clean + shift, np.ones(len(people), np.bool_), 0)


def test_labels_are_drawn_from_degraded_and_clean_photos_of_people_to_learn_from(split: MixedSplit) -> None:
    data = split.draw_training_set(100)
    [task] = data.tasks
    assert np.isnan(task.values).all(), "nobody is named"
    assert (len(task.pairs), int(task.same.sum())) == (100, 50)
    people = split.protocol.people[split.protocol.training]
    np.testing.assert_array_equal(people[task.pairs[:, 0]] == people[task.pairs[:, 1]], task.same)
    degraded = (data.rows == split.degraded[split.protocol.training]).all(axis=1)
    assert 0.3 < degraded.mean() < 0.7


def test_the_worst_impostors_are_the_nearest_pairs_of_different_people() -> None:
    rows = np.array([[1, 0], [0.99, 0.1], [0.6, 0.8], [0, 1], [0.05, 1]], np.float32)
    pairs = find_worst_impostors(rows, np.array([0, 1, 2, 3, 3]), 2)
    assert sorted(map(tuple, pairs.tolist())) == [(0, 1), (2, 4)]


def test_impostors_are_labelled_different_beside_the_names(split: MixedSplit) -> None:
    [task] = split.draw_named_set(5).tasks
    assert not task.same.any()
    assert len(task.pairs) == 5
    assert not np.isnan(task.values).any()


def test_searches_are_scored_for_each_query(split: MixedSplit) -> None:
    scores = split.search(Cosine())
    assert scores.precision.shape == scores.accepted.shape == (20,)
    assert (scores.precision > 0).all()
    assert (scores.precision <= 1).all()


def test_what_differs_between_conditions_is_learned_to_be_ignored(split: MixedSplit) -> None:
    fit = fit_split(split, "shifted", 200, ["wccn"], 0)
    assert fit.candidate.startswith("wccn")
    assert fit.gain > 0.1


def test_a_row_shows_the_mean_its_interval_and_the_worst_split() -> None:
    gains = (0.01, 0.03)
    fits = [SafeFit("clean", i, 1000, 0.9, gain, 0.0, "wccn 0.5", 1.0) for i, gain in enumerate(gains)]
    assert make_row(fits) == (
        "| clean | 1,000 | 90.0 | +2.00 (-10.71 to +14.71) | +0.00 (+0.00 to +0.00) | +1.00 | wccn 0.5 2 |"
    )
