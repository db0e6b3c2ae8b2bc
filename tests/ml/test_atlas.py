"""Maps of galleries: PCA by an independent implementation, t-SNE by its own promises, neighbours by scikit-learn."""

import threading

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from ml.atlas import PcaMap, TsneMap, measure_neighbours, tsne_map
from ml.distances import InnerProduct
from ml.errors import Corrupt, NotFinite, Unavailable, WrongShape
from tests.rows import people

NAN = np.array([np.nan], "<f8").tobytes()
SPREADS = np.array([3, 1, 2, 1, 0.5, 1, 1, 1], np.float32)


def draw_rows(count: int, seed: int = 0) -> np.ndarray:
    return (5 + np.random.default_rng(seed).standard_normal((count, 8)) * SPREADS).astype(np.float32)


@pytest.mark.parametrize("count", [6, 200], ids=["wider than long", "longer than wide"])
def test_pca_finds_the_axes_of_scikit_learn(count: int) -> None:
    rows = draw_rows(count)
    fitted, reference = PcaMap.fit(rows), PCA(2, svd_solver="full").fit(rows.astype(np.float64))
    signs = np.sign((fitted.axes * reference.components_).sum(1, keepdims=True))
    assert np.allclose(fitted.axes, signs * reference.components_, atol=1e-6)
    assert np.allclose(fitted.explained_variance, reference.explained_variance_ratio_)
    new = draw_rows(5, seed=1)
    assert np.allclose(fitted.locate(new), reference.transform(new.astype(np.float64)) * signs.T, atol=1e-5)


def test_a_stored_projection_places_faces_bit_for_bit() -> None:
    rows = draw_rows(50)
    fitted = PcaMap.fit(rows)
    restored = PcaMap.from_bytes(fitted.to_bytes())
    assert np.array_equal(restored.locate(rows), fitted.locate(rows))
    assert restored.explained_variance == fitted.explained_variance
    written = fitted.to_bytes()
    of_an_earlier_version = np.ones(2 + 8 + 16).tobytes()
    for damaged in (b"", written[:-8], written[:-3], written[:8], written[:-8] + NAN, of_an_earlier_version):
        with pytest.raises(Corrupt):
            PcaMap.from_bytes(damaged)


def test_a_stored_projection_does_not_tell_the_mean_of_the_embeddings() -> None:
    """Embeddings that were erased could be computed from it and from those that are left."""
    rows = draw_rows(50)
    fitted = PcaMap.fit(rows)
    across = np.linalg.svd(fitted.axes)[2][2:].sum(0)
    shifted = PcaMap.fit((rows + 9 * across).astype(np.float32))
    numbers, others = (np.frombuffer(one.to_bytes(), "<f8")[1:] for one in (fitted, shifted))
    assert np.allclose(numbers, others, atol=1e-4)


def test_rows_that_vary_in_one_direction_lie_on_a_line() -> None:
    fitted = PcaMap.fit(np.outer(np.arange(5), [3, 4]).astype(np.float32))
    assert fitted.explained_variance == pytest.approx((1.0, 0.0))
    assert np.allclose(np.diff(fitted.locate(np.outer(np.arange(5), [3, 4]).astype(np.float32)), axis=0), [[5, 0]] * 4)
    assert PcaMap.fit(np.array([[1], [2], [4]], np.float32)).axes.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("fit", [PcaMap.fit, TsneMap.fit])
def test_rows_without_a_map_are_refused(fit: object) -> None:
    for rows in (draw_rows(2), np.ones((9, 8), np.float32), np.ones(9, np.float32)):
        with pytest.raises(WrongShape):
            fit(rows)  # type: ignore[operator]
    with pytest.raises(NotFinite):
        fit(np.where(np.eye(8), np.nan, 1).astype(np.float32))  # type: ignore[operator]


@pytest.mark.parametrize("count", [3, 60])
def test_trustworthiness_agrees_with_scikit_learn(count: int) -> None:
    rows = draw_rows(count)
    plane = PcaMap.fit(rows).locate(rows)
    agreement = measure_neighbours(rows, plane)
    assert agreement.neighbours == (1 if count == 3 else 10)
    expected = trustworthiness(rows, plane, n_neighbors=agreement.neighbours)
    assert agreement.trustworthiness == pytest.approx(expected)


def test_neighbours_of_a_plane_survive_and_those_of_chance_do_not() -> None:
    plane = np.random.default_rng(0).standard_normal((400, 2))
    rows = plane.astype(np.float32)
    kept = measure_neighbours(rows, plane)
    assert (kept.kept, kept.trustworthiness) == (1.0, 1.0)
    by_chance = measure_neighbours(rows, plane[np.random.default_rng(1).permutation(400)])
    assert by_chance.kept == pytest.approx(by_chance.chance, abs=0.015)
    assert by_chance.trustworthiness == pytest.approx(0.5, abs=0.05)


def test_neighbours_are_those_of_the_model() -> None:
    rows = draw_rows(300)
    plane = PcaMap.fit(rows).locate(rows)
    assert measure_neighbours(rows, plane, InnerProduct()).kept != measure_neighbours(rows, plane).kept


def test_only_a_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ml.atlas.neighbours.MAX_SAMPLED_FACES", 90)
    monkeypatch.setattr("ml.atlas.neighbours.MAX_QUERIES", 50)
    rows = draw_rows(300)
    plane = PcaMap.fit(rows).locate(rows)
    first = measure_neighbours(rows, plane, seed=3)
    assert (first.faces, first.queries, first.chance) == (90, 50, 10 / 89)
    assert first == measure_neighbours(rows, plane, seed=3) != measure_neighbours(rows, plane, seed=4)
    with pytest.raises(WrongShape):
        measure_neighbours(rows, plane[:-1])


def test_tsne_keeps_people_together_and_places_new_faces_beside_them() -> None:
    pytest.importorskip("openTSNE", exc_type=ImportError)
    rows, names = people(12, 10, dim=8)
    fitted = TsneMap.fit(rows, seed=1)
    assert np.array_equal(fitted.coordinates, TsneMap.fit(rows, seed=1).coordinates)
    assert not np.array_equal(fitted.coordinates, TsneMap.fit(rows, seed=2).coordinates)
    own = np.array(names)
    new = rows[::10] + 0.05 * np.random.default_rng(5).standard_normal((12, 8)).astype(np.float32)
    placed = fitted.locate(new)
    nearest = np.linalg.norm(placed[:, None] - fitted.coordinates[None], axis=2).argmin(1)
    assert (own[nearest] == own[::10]).mean() >= 11 / 12
    later = TsneMap(fitted.rows, fitted.coordinates + 100, seed=1)
    assert np.allclose(later.locate(new), placed + 100, atol=1e-6), "stored coordinates need not be centred"
    assert len(fitted.locate(new[:0])) == 0
    with pytest.raises(WrongShape):
        fitted.locate(new[:, :3])


def test_a_fit_can_be_stopped() -> None:
    pytest.importorskip("openTSNE", exc_type=ImportError)
    stop = threading.Event()
    stop.set()

    def check() -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TsneMap.fit(people(12, 10)[0], check=check)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tsne_map, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="likeness\\[tsne\\]"):
        TsneMap.fit(people(12, 10)[0])
