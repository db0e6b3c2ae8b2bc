"""Two models judged by labelled pairs."""

import numpy as np
import pytest

from ml.errors import WrongShape
from ml.evaluation.comparisons.gate_rule import judge
from ml.evaluation.comparisons.labelled_pairs import LabelledPairs, compare_pairs


def draw_labelled_pairs(count: int, names: tuple[str, ...], seed: int = 0) -> LabelledPairs:
    draw = np.random.default_rng(seed)
    same = np.arange(count) % 2 == 0
    first = np.arange(count) // 2
    people = np.stack([first, np.where(same, first, first + 1000)], axis=1)
    return LabelledPairs(same, people, [names[i] for i in draw.integers(0, len(names), count)])


def distances(pairs: LabelledPairs, apart: float, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.where(pairs.same, 0.0, apart) + draw.normal(size=len(pairs.same))


@pytest.mark.parametrize("names", [("ann", "bob", "cy"), ("ann",)])
def test_the_model_that_separates_the_pairs_better_wins(names: tuple[str, ...]) -> None:
    pairs = draw_labelled_pairs(400, names)
    good, poor = distances(pairs, 4.0, 1), distances(pairs, 2.0, 2)
    comparison = compare_pairs(poor, good, pairs)
    assert comparison.candidate["labelled_pairs"].value == pytest.approx(
        0.977, abs=0.02
    )  # normal, two SD to either side
    assert comparison.baseline["labelled_pairs"].value == pytest.approx(0.841, abs=0.05)
    assert comparison.difference["labelled_pairs"].low > 0
    assert judge(comparison).passed
    assert judge(compare_pairs(good, poor, pairs)).reasons[0].startswith("labelled pairs told right")
    assert (comparison.pairs, set(comparison.labellers)) == (400, set(names))
    counts = comparison.labellers.values()
    assert sum(c["pairs"] for c in counts) == 400
    assert sum(c["candidate"] for c in counts) > sum(c["baseline"] for c in counts)


def test_a_labeller_who_answers_the_contrary_is_wrong_and_does_not_affect_others() -> None:
    same = np.array([True, False] * 40)
    names = ["ann"] * 60 + ["contrary"] * 20
    distance = np.where(same, 0.0, 1.0)
    claimed = np.where(np.array(names) == "contrary", ~same, same)
    people = np.stack([np.arange(80), np.arange(80) + 100], axis=1)
    comparison = compare_pairs(None, distance, LabelledPairs(claimed, people, names))
    assert comparison.labellers["contrary"] == {"pairs": 20, "candidate": 0}
    assert comparison.labellers["ann"]["candidate"] == 60
    assert comparison.difference == comparison.baseline == {}


def test_a_labellers_pairs_are_decided_at_the_threshold_of_the_others() -> None:
    """Each of three labellers was shown pairs of another range of distances, and drew the line within it."""
    shift, same = np.repeat([0.0, 10.0, 20.0], 20), np.array([True, False] * 30)
    people = np.stack([np.arange(60), np.arange(60) + 100], axis=1)
    comparison = compare_pairs(
        None, shift + ~same, LabelledPairs(same, people, np.repeat(["a", "b", "c"], 20).tolist())
    )
    assert all(thresholds["candidate"] == 10 for thresholds in comparison.labellers.values())


def test_both_kinds_weigh_alike() -> None:
    """Calling everything different is right half the time, however rare the same are."""
    same = np.arange(200) < 10
    people = np.stack([np.arange(200), np.arange(200) + 500], axis=1)
    comparison = compare_pairs(None, np.zeros(200), LabelledPairs(same, people, ["ann"] * 200))
    assert comparison.candidate["labelled_pairs"].value == pytest.approx(0.5)


def test_pairs_of_only_one_kind_give_no_comparison() -> None:
    with pytest.raises(WrongShape):
        compare_pairs(None, np.zeros(3), LabelledPairs(np.ones(3, bool), np.zeros((3, 2), np.int64), ["ann"] * 3))
