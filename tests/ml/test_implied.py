"""Implied pairs agree with a slow implementation of the rules."""

from itertools import combinations

import numpy as np
import pytest

from ml.sampling.implied import derive_implied_pairs


def test_a_chain_of_same_makes_all_of_its_pairs_the_same() -> None:
    pairs, same = derive_implied_pairs(
        np.array([[1, 2], [2, 3], [7, 3]]), np.array([True, True, True]), np.random.default_rng(0)
    )
    assert {tuple(p) for p in pairs.tolist()} == {(1, 3), (1, 7), (2, 7)}
    assert same.all()


def test_one_different_label_separates_all_pairs_of_two_groups() -> None:
    labelled = np.array([[1, 2], [5, 6], [2, 5]])
    pairs, same = derive_implied_pairs(labelled, np.array([True, True, False]), np.random.default_rng(0))
    assert dict(zip(map(tuple, pairs.tolist()), same.tolist(), strict=True)) == {
        (1, 5): False,
        (1, 6): False,
        (2, 6): False,
    }


def test_a_group_that_contradicts_itself_implies_nothing() -> None:
    labelled = np.array([[1, 2], [2, 3], [1, 3], [3, 9]])
    pairs, _ = derive_implied_pairs(labelled, np.array([True, True, False, False]), np.random.default_rng(0))
    assert len(pairs) == 0


def test_groups_that_nobody_compared_imply_nothing_of_each_other() -> None:
    pairs, _ = derive_implied_pairs(np.array([[1, 2], [5, 6]]), np.array([True, True]), np.random.default_rng(0))
    assert len(pairs) == 0


@pytest.mark.parametrize("seed", range(5))
def test_it_never_contradicts_the_truth_behind_the_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    people = rng.integers(0, 6, 40)
    every = np.array(list(combinations(range(40), 2)))
    labelled = every[rng.choice(len(every), 60, replace=False)]
    truth = people[labelled[:, 0]] == people[labelled[:, 1]]
    pairs, same = derive_implied_pairs(labelled, truth, rng)
    assert np.array_equal(people[pairs[:, 0]] == people[pairs[:, 1]], same)
    assert not {tuple(p) for p in pairs.tolist()} & {tuple(p) for p in labelled.tolist()}


def test_a_large_group_brings_no_more_than_its_share() -> None:
    chain = np.array([[i, i + 1] for i in range(300)])
    pairs, _ = derive_implied_pairs(chain, np.ones(300, bool), np.random.default_rng(0), max_pairs=50)
    assert 0 < len(pairs) <= 50
