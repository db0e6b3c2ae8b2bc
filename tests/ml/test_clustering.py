import numpy as np
import pytest
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import normalized_mutual_info_score

from ml.errors import WrongShape
from ml.evaluation.clustering import cluster_faces, measure_cluster_nmi, nmi


def crowd(draw: np.random.Generator, people: int, loud: float) -> tuple[np.ndarray, np.ndarray]:
    who = np.repeat(np.arange(people), draw.integers(3, 12, people))
    rows = draw.normal(size=(people, 6))[who] + loud * draw.normal(size=(len(who), 6))
    return rows.astype(np.float32), who


def test_nmi_equals_scikit_learns_with_the_arithmetic_mean() -> None:
    draw = np.random.default_rng(0)
    for people, count in ((2, 2), (7, 30), (40, 13)):
        a, b = draw.integers(0, people, 200), draw.integers(0, count, 200)
        theirs = normalized_mutual_info_score(a, b, average_method="arithmetic")
        assert nmi(a, b, resamples=10).value == pytest.approx(theirs, abs=1e-12)


def test_nmi_equals_pytorch_metric_learnings_on_the_same_clusters() -> None:
    rows, who = crowd(np.random.default_rng(1), 20, 0.6)
    clusters = cluster_faces(rows, 20, seed=3)
    theirs = AccuracyCalculator(include=("NMI",), kmeans_func=lambda *_: clusters, device="cpu").get_accuracy(
        rows, who, rows, who, ref_includes_query=True
    )
    assert measure_cluster_nmi(rows, who, seed=3, resamples=10).value == pytest.approx(theirs["NMI"], abs=1e-12)


def test_separate_people_give_high_nmi_and_shuffled_names_do_not() -> None:
    draw = np.random.default_rng(2)
    rows, who = crowd(draw, 12, 0.01)
    assert measure_cluster_nmi(rows, who).value == pytest.approx(1)
    shuffled = measure_cluster_nmi(rows, draw.permutation(who))
    chance = np.mean([normalized_mutual_info_score(who, draw.permutation(who)) for _ in range(200)])
    assert shuffled.value == pytest.approx(chance, abs=0.06)


def test_the_interval_contains_the_true_nmi() -> None:
    """The truth is the mean over worlds: NMI depends on how many people there are, so there is no other."""
    draw = np.random.default_rng(5)
    intervals = [measure_cluster_nmi(*crowd(draw, 60, 0.6), resamples=200) for _ in range(100)]
    truth = np.mean([one.value for one in intervals])
    assert 0.84 <= np.mean([one.low <= truth <= one.high for one in intervals]) <= 1.0


def test_names_and_numbers_of_clusters_do_not_matter() -> None:
    a, b = np.array([5, 5, 9, 9, 1]), np.array([0, 0, 3, 3, 3])
    assert nmi(a, b) == nmi(np.array([2, 2, 7, 7, 0]), np.array([7, 7, 1, 1, 1]))


def test_input_that_cannot_be_clustered_is_refused() -> None:
    with pytest.raises(WrongShape, match="1 to 3"):
        cluster_faces(np.zeros((3, 2), np.float32), 4)
    with pytest.raises(WrongShape, match="of equal length"):
        nmi(np.zeros(3, np.int64), np.zeros(2, np.int64))
    assert np.isnan(nmi(np.zeros(3, np.int64), np.zeros(3, np.int64)).value)
