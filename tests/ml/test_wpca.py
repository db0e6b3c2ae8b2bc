import numpy as np
import pytest
from sklearn.decomposition import PCA

from ml.embedders.base import TrainingSet
from ml.embedders.cosine import Cosine
from ml.embedders.wpca import Wpca
from ml.errors import TooFewPairs, WrongShape


def rows_of(seed: int, n: int, d: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return (draw.normal(size=(n, d)) * np.geomspace(4, 0.2, d) @ np.linalg.qr(draw.normal(size=(d, d)))[0] + 3).astype(
        np.float32
    )


@pytest.mark.parametrize(("seed", "n", "d", "dim"), [(0, 300, 20, 4), (1, 150, 60, 7), (2, 40, 90, 5)])
def test_it_equals_scikit_learns_whitened_pca(seed: int, n: int, d: int, dim: int) -> None:
    rows = rows_of(seed, n, d)
    z = Wpca(dim=dim).fit(TrainingSet(rows, ())).embed(rows)
    oracle = PCA(dim, whiten=True, svd_solver="full").fit_transform(rows.astype(np.float64))
    ours, theirs = (((a[:, None] - a[None]) ** 2).sum(2) for a in (z, oracle))
    assert np.abs(ours - theirs).max() < 0.01 * theirs.max()
    np.testing.assert_allclose(z.var(0, ddof=1), 1, rtol=0.01)


def test_without_whitening_distances_are_those_of_plain_pca() -> None:
    rows = rows_of(3, 200, 30)
    z = Wpca(dim=30, whiten=False).fit(TrainingSet(rows, ())).embed(rows)
    np.testing.assert_allclose(
        np.linalg.norm(z[0] - z[1:], axis=1), np.linalg.norm(rows[0] - rows[1:], axis=1), rtol=1e-4
    )


def test_a_sample_of_the_rows_gives_nearly_the_same_axes() -> None:
    rows = rows_of(4, 4000, 40)
    whole, some = (Wpca(dim=3, sample=n).fit(TrainingSet(rows, ())).learned["projection"] for n in (4000, 1000))
    cosines = (whole * some).sum(1) / np.linalg.norm(whole, axis=1) / np.linalg.norm(some, axis=1)
    assert (cosines > 0.9).all()


def test_as_many_faces_as_axes_are_one_too_few() -> None:
    with pytest.raises(TooFewPairs, match="6 faces needed, 5 found"):
        Wpca(dim=5).fit(TrainingSet(rows_of(5, 5, 9), ()))


def test_more_axes_than_numbers_are_refused() -> None:
    with pytest.raises(WrongShape, match="10 or more"):
        Wpca(dim=10).fit(TrainingSet(rows_of(6, 50, 9), ()))


def test_cosine_compares_by_angle_and_leaves_zeros_alone() -> None:
    rows = np.array([[3, 4], [30, 40], [-4, 3], [0, 0]], np.float32)
    z = Cosine().embed(rows)
    np.testing.assert_allclose(z, [[0.6, 0.8], [0.6, 0.8], [-0.8, 0.6], [0, 0]], atol=1e-6)
