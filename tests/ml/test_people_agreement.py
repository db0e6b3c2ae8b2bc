import numpy as np
import pytest
from sklearn.metrics.cluster import pair_confusion_matrix

from ml.errors import WrongShape
from ml.evaluation.people_agreement import compare_with_people


def test_pairwise_rates_equal_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    for people, clusters in ((3, 8), (30, 10), (50, 50)):
        a, b = draw.integers(0, people, 300), draw.integers(0, clusters, 300)
        (_, false_pairs), (missed, true_pairs) = pair_confusion_matrix(a, b)
        agreement = compare_with_people(a, b)
        assert agreement.precision == pytest.approx(true_pairs / (true_pairs + false_pairs))
        assert agreement.recall == pytest.approx(true_pairs / (true_pairs + missed))
        both = agreement.precision + agreement.recall
        assert agreement.f1 == pytest.approx(2 * agreement.precision * agreement.recall / both)


def test_a_small_example_by_hand() -> None:
    people = np.array([7, 7, 7, 3, 3, 9])
    clusters = np.array([0, 0, 1, 1, 2, 5])
    agreement = compare_with_people(people, clusters)
    assert (agreement.precision, agreement.recall) == (1 / 2, 1 / 4)
    assert agreement.b_cubed_precision == pytest.approx((1 + 1 + 1 / 2 + 1 / 2 + 1 + 1) / 6)
    assert agreement.b_cubed_recall == pytest.approx((2 / 3 + 2 / 3 + 1 / 3 + 1 / 2 + 1 / 2 + 1) / 6)
    assert agreement.clusters_per_person == 2
    assert (agreement.clusters, agreement.mixed, agreement.people, agreement.alone) == (2, 1, 2, 2)


def test_right_clusters_and_a_single_cluster() -> None:
    people = np.repeat(np.arange(5), 4)
    right = compare_with_people(people, people + 10)
    assert (right.f1, right.b_cubed_f1, right.clusters_per_person, right.mixed) == (1, 1, 1, 0)
    one = compare_with_people(people, np.zeros(20, np.int64))
    assert (one.recall, one.clusters_per_person, one.mixed) == (1, 1, 1)
    assert one.precision == pytest.approx(3 / 19)


def test_people_with_one_photo_count_in_no_pair() -> None:
    alone = compare_with_people(np.arange(4), np.arange(4))
    assert np.isnan(alone.precision)
    assert np.isnan(alone.recall)
    assert np.isnan(alone.clusters_per_person)
    with pytest.raises(WrongShape, match="of equal length"):
        compare_with_people(np.arange(3), np.arange(4))
