import numpy as np
import pytest
from scipy.stats import permutation_test, ttest_rel, wilcoxon

from ml.errors import WrongShape
from ml.evaluation.comparisons.paired_tests import compare, compare_folds, permutation_p


def pair(seed: int, better: float, people: int = 40, each: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two systems on the same queries; people differ in how much the first is better."""
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(people * 1.0), each)
    hard = draw.random(len(who))
    gain = draw.normal(better, 0.2, people)[who.astype(int)] + draw.normal(0, 0.05, len(who))
    return hard + gain, hard, who


def test_every_swap_of_few_people_is_tried() -> None:
    totals = np.array([1.0, 2.0, 4.0])
    assert permutation_p(totals) == 2 / 8
    assert permutation_p(np.array([3.0, -3.0])) == 1.0


@pytest.mark.parametrize("people", [8, 30])
def test_the_permutation_test_is_scipys(people: int) -> None:
    draw = np.random.default_rng(people)
    a = draw.normal(0.25, 1, people)
    theirs = permutation_test((a, np.zeros(people)), lambda x, y: np.mean(x - y), permutation_type="samples", rng=2)
    assert permutation_p(a) == pytest.approx(theirs.pvalue, abs=1e-12 if people == 8 else 0.02)


def test_people_are_swapped_whole() -> None:
    a, b, who = pair(1, 0.1, people=12, each=20)
    together, apart = compare(a, b, who), compare(a, b)
    assert (together.groups, apart.groups) == (12, 240)
    assert together.p > 5 * apart.p
    assert together.difference.value == apart.difference.value == pytest.approx(np.mean(a - b))


def test_a_real_difference_is_significant_and_no_difference_is_not() -> None:
    assert compare(*pair(2, 0.2)).p < 0.001
    a, _, who = pair(3, 0.0)
    same = compare(a, a, who)
    assert (same.p, same.difference.low, same.difference.high) == (1.0, 0.0, 0.0)


def test_chance_alone_is_called_a_difference_once_in_twenty() -> None:
    p_values = np.array([compare(*pair(seed, 0.0, people=20)).p for seed in range(200)])
    assert 0.005 < (p_values <= 0.05).mean() < 0.11
    assert 0.4 < p_values.mean() < 0.6


def test_the_interval_and_the_test_agree() -> None:
    for seed in range(20):
        comparison = compare(*pair(100 + seed, 0.06))
        if not 0.02 < comparison.p < 0.1:
            assert (comparison.p <= 0.05) == (not comparison.difference.low <= 0 <= comparison.difference.high)


def test_queries_without_a_result_on_either_side_are_left_out() -> None:
    a, b = np.array([1.0, np.nan, 3.0]), np.array([0.0, 1.0, 2.0])
    assert compare(a, b).difference.value == 1
    with pytest.raises(WrongShape, match="judged under both"):
        compare(np.array([np.nan]), np.array([1.0]))
    with pytest.raises(WrongShape, match="one each"):
        compare(a, b[:2])


def test_folds_are_compared_as_scipy_compares_them() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.normal(0.88, 0.01, 10), draw.normal(0.87, 0.01, 10)
    comparison = compare_folds(a, b)
    assert comparison.t == pytest.approx(ttest_rel(a, b).pvalue)
    assert comparison.wilcoxon == pytest.approx(wilcoxon(a - b).pvalue)
    assert comparison.difference.value == pytest.approx(np.mean(a - b))


def test_shared_training_data_makes_the_test_over_folds_more_conservative() -> None:
    """Nadeau and Bengio: (1 / 10 + 1 / 9) instead of 1 / 10, t smaller by the root of 19 / 9."""
    draw = np.random.default_rng(7)
    a = draw.normal(0.5, 1, 10)
    comparison, zero = compare_folds(a, np.zeros(10)), np.zeros(10)
    assert comparison.corrected > comparison.t
    wider = a.mean() + (a - a.mean()) * (19 / 9) ** 0.5
    assert comparison.corrected == pytest.approx(ttest_rel(wider, zero).pvalue)
    assert (comparison.corrected < 0.05) == (comparison.difference.low > 0 or comparison.difference.high < 0)
    assert compare_folds(a, a).corrected == compare_folds(a, a).wilcoxon == 1.0
    with pytest.raises(WrongShape, match="two or more"):
        compare_folds(a[:1], a[:1])
