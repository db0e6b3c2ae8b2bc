import numpy as np
import pytest
from sklearn.metrics import roc_curve

from ml.errors import WrongShape
from ml.evaluation.verification import (
    accuracy,
    best_threshold,
    det,
    fmr,
    fnmr,
    misses_at_fpir,
    over_folds,
    thinned,
    threshold_at_fmr,
)


@pytest.fixture
def scores() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(0, 1, 500), draw.normal(2, 1, 5000)


def test_error_rates_by_hand() -> None:
    genuine, impostor = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0])
    assert fmr(impostor, 2.0) == 0.5
    assert fnmr(genuine, 2.0) == pytest.approx(1 / 3)


def test_the_det_curve_is_the_roc_curve_of_scikit_learn(scores: tuple[np.ndarray, np.ndarray]) -> None:
    genuine, impostor = scores
    curve = det(genuine, impostor)
    truth = np.repeat([1, 0], [len(genuine), len(impostor)])
    false, true, _ = roc_curve(truth, -np.concatenate(scores), drop_intermediate=False)
    assert np.allclose(curve.fmr, false)
    assert np.allclose(1 - curve.fnmr, true)


def test_equal_error_rate_of_two_shifted_normals(scores: tuple[np.ndarray, np.ndarray]) -> None:
    assert det(*scores).eer == pytest.approx(0.1587, abs=0.02)
    assert det(np.array([0.0, 1]), np.array([2.0, 3])).eer == 0


def test_a_thinned_curve_keeps_its_ends_and_its_order(scores: tuple[np.ndarray, np.ndarray]) -> None:
    whole, few = det(*scores), thinned(det(*scores), 50)
    assert len(few.fmr) <= 51
    assert (few.fmr[0], few.fmr[-1]) == (0, 1)
    assert (np.diff(few.fmr) >= 0).all()
    assert set(few.fnmr) <= set(whole.fnmr)


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.01, 0.1, 1.0])
def test_a_threshold_keeps_its_false_match_rate_and_could_not_be_larger(
    scores: tuple[np.ndarray, np.ndarray], rate: float
) -> None:
    threshold = threshold_at_fmr(scores[1], rate)
    assert fmr(scores[1], threshold) <= rate
    larger = np.nextafter(threshold, np.inf)
    assert rate == 1 or fmr(scores[1], larger) > rate


def test_misses_at_a_false_positive_identification_rate_by_hand() -> None:
    mate, stranger = np.array([1.0, 5.0, 2.0, np.inf]), np.array([3.0, 4.0, 6.0, 8.0])
    assert np.array_equal(misses_at_fpir(mate, stranger, 0.25), [0, 1, 0, np.nan], equal_nan=True)
    assert np.array_equal(misses_at_fpir(mate, stranger, 0.5), [0, 0, 0, np.nan], equal_nan=True)


def test_the_best_threshold_is_best() -> None:
    draw = np.random.default_rng(5)
    d, same = draw.integers(0, 30, 200).astype(float), draw.random(200) < 0.5
    best_accuracy = accuracy(d, same, best_threshold(d, same))
    assert best_accuracy == max(accuracy(d, same, t) for t in np.arange(-1, 31, 0.5))
    assert best_threshold(np.array([1.0, 2, 5, 6]), np.array([True, True, False, False])) == 3.5


def test_folds_give_deviation_and_standard_error() -> None:
    folds = over_folds(np.array([0.8, 0.9, 1.0]))
    assert (folds.mean, folds.sd) == (pytest.approx(0.9), pytest.approx(0.1))
    assert folds.se == pytest.approx(0.1 / 3**0.5)


def test_a_curve_needs_both_kinds_of_pairs() -> None:
    with pytest.raises(WrongShape, match="not empty"):
        det(np.empty(0), np.ones(3))
