"""FlatClusters and hierarchical clustering with local metrics, and the k-means that both divide by."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from ml.clustering.kmeans import k_means, nearest
from ml.embedders.base import TrainingSet
from ml.embedders.flat import FlatClusters
from ml.embedders.hierarchical import HierarchicalClusters
from ml.embedders.ldml import Ldml
from ml.errors import CannotGoOn, TooFewPairs
from tests.ml.synthetic_people import identity, nearest_is_alike, people
from tests.rounding import rounding

SMALL = {"dim": 6, "steps": 40}
DATA = people(80, seed=1)
NEW = people(80, seed=2)
ALIKE = [
    pytest.param(FlatClusters.from_options(**SMALL, k=1), id="flat"),
    pytest.param(HierarchicalClusters.from_options(**SMALL, depth=1), id="hierarchical"),
]
BOTH = [
    pytest.param(FlatClusters.from_options(**SMALL, k=3, local_steps=20), id="flat"),
    pytest.param(HierarchicalClusters.from_options(**SMALL, depth=3, local_steps=20), id="hierarchical"),
]


@pytest.mark.parametrize("undivided", ALIKE)
@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_an_undivided_embedder_equals_ldml(undivided: FlatClusters | HierarchicalClusters, held_out: float) -> None:
    one, linear = (
        undivided.with_options(held_out=held_out).fit(DATA),
        Ldml.from_options(**SMALL, held_out=held_out).fit(DATA),
    )
    assert one.learned.keys() == linear.learned.keys()
    for name, array in linear.learned.items():  # by the same code from the same numbers
        np.testing.assert_array_equal(one.learned[name], array)
    z = linear.embed(NEW.rows)
    np.testing.assert_allclose(one.embed(NEW.rows), z, atol=rounding(NEW.rows.shape[1]) * np.abs(z).max())


def test_a_tree_of_one_division_is_flat() -> None:
    tree, flat = (
        HierarchicalClusters.from_options(**SMALL, depth=2, local_steps=20).fit(DATA),
        FlatClusters.from_options(**SMALL, k=2, local_steps=20).fit(DATA),
    )
    np.testing.assert_array_equal(tree.embed(NEW.rows), flat.embed(NEW.rows))


@pytest.mark.parametrize("cells", BOTH)
def test_cells_that_learn_nothing_of_their_own_keep_the_global_metric(
    cells: FlatClusters | HierarchicalClusters,
) -> None:
    still = cells.with_options(local_steps=0, unit=True).fit(DATA)
    z, linear = still.embed(NEW.rows), Ldml.from_options(**SMALL).fit(DATA).embed(NEW.rows)
    np.testing.assert_allclose(z, linear, atol=1e-4)
    assert len(np.unique(still.find_cells(NEW.rows))) == still.cells


@pytest.mark.parametrize("cells", BOTH)
@pytest.mark.parametrize("unit", [True, False])
def test_a_face_is_mapped_by_its_own_cell_alone(cells: FlatClusters | HierarchicalClusters, unit: bool) -> None:
    fitted = cells.with_options(unit=unit).fit(DATA)
    cell, z = fitted.find_cells(NEW.rows), fitted.embed(NEW.rows)
    maps = fitted.learned["projection"].reshape(fitted.cells, 6, -1).astype(np.float64)
    offsets = fitted.learned["offset"].reshape(fitted.cells, 6)
    for s in range(fitted.cells):
        slow = NEW.rows[cell == s] @ maps[s].T - offsets[s]
        slow = slow / np.linalg.norm(slow, axis=1, keepdims=True) if unit else slow
        np.testing.assert_allclose(z[cell == s], slow, atol=1e-4)
    assert all(np.abs(maps[s] - maps[0]).max() > 1e-3 for s in range(1, fitted.cells))


def test_a_face_goes_down_the_tree_to_the_nearer_mean_at_each_node() -> None:
    fitted = HierarchicalClusters.from_options(**SMALL, depth=3, local_steps=20).fit(DATA)
    gates, offsets, means = (fitted.learned[n].astype(np.float64) for n in ("gates", "gate_offsets", "means"))
    assert gates.shape == (3, 6, 30)
    for row, leaf in zip(NEW.rows, fitted.find_cells(NEW.rows), strict=True):
        side, node = [], 0
        for _ in range(2):
            z = gates[node] @ row - offsets[node]
            z /= np.linalg.norm(z)
            side.append(int(((z - means[node]) ** 2).sum(1).argmin()))
            node = 1 + side[0]
        assert leaf == 2 * side[0] + side[1]


@pytest.mark.parametrize("cells", BOTH)
def test_walls_rank_the_own_cell_first_and_change_nothing_within_it(cells: FlatClusters | HierarchicalClusters) -> None:
    open_, walled = cells.fit(DATA), cells.with_options(wall=4.0).fit(DATA)
    cell, z, far = open_.find_cells(NEW.rows), open_.embed(NEW.rows), walled.embed(NEW.rows)
    np.testing.assert_array_equal(cell, walled.find_cells(NEW.rows))
    assert far.shape[1] == 6 + open_.cells
    d2, walled_d2 = (((e[:, None] - e[None]).astype(np.float64) ** 2).sum(2) for e in (z, far))
    same = cell[:, None] == cell[None]
    np.testing.assert_allclose(walled_d2 - d2, np.where(same, 0, 4), atol=1e-5)
    assert all(walled_d2[i][same[i]].max() <= walled_d2[i][~same[i]].min() for i in range(len(cell)))


@pytest.mark.parametrize("cells", BOTH)
def test_a_cell_with_too_few_pairs_keeps_the_map_of_its_parent(cells: FlatClusters | HierarchicalClusters) -> None:
    person = np.arange(400)
    person[:40] = np.arange(40) // 5  # eight people have several photos, all others one
    data = TrainingSet(DATA.rows, (identity(person),))
    fitted = cells.with_options(min_pairs=70).fit(data)
    maps = fitted.learned["projection"].reshape(fitted.cells, 6, -1)
    assert all(np.allclose(m, maps[0], atol=1e-6) for m in maps)


@pytest.mark.parametrize("cells", BOTH)
def test_new_people_are_told_apart_about_as_well_as_by_one_metric(cells: FlatClusters | HierarchicalClusters) -> None:
    local, linear = (e.fit(DATA).embed(NEW.rows) for e in (cells, Ldml.from_options(**SMALL)))
    shares_right = [nearest_is_alike(z, NEW.tasks[0].people) for z in (local, linear)]
    assert shares_right[0] > shares_right[1] - 0.1
    assert shares_right[0] > nearest_is_alike(NEW.rows, NEW.tasks[0].people) + 0.2


def two_kinds() -> tuple[TrainingSet, TrainingSet]:
    """Faces of two kinds, far apart: what tells the people of one kind apart is noise in those of the other."""
    sets = []
    for seed in (1, 2):
        one, other = people(60, seed=seed, noise=8), people(60, seed=seed + 9, noise=8)
        swapped = np.concatenate([other.rows[:, 8:], other.rows[:, :8]], 1)
        kind = np.repeat([[6.0], [-6.0]], 300, axis=0)
        rows = np.concatenate([np.concatenate([one.rows, swapped]), kind], 1).astype(np.float32)
        person = np.concatenate([one.tasks[0].people, 60 + other.tasks[0].people])
        sets.append(TrainingSet(rows, (identity(person),)))
    return sets[0], sets[1]


@pytest.mark.parametrize(
    "cells", [FlatClusters.from_options(k=2), HierarchicalClusters.from_options(depth=2)], ids=["flat", "hierarchical"]
)
def test_where_kinds_of_faces_differ_local_metrics_beat_one(cells: FlatClusters | HierarchicalClusters) -> None:
    known, new = two_kinds()
    options = {"dim": 8, "steps": 60, "unit": False}
    local = cells.with_options(**options, local_steps=100, local_rate=0.03).fit(known)
    linear = Ldml.from_options(**options).fit(known)
    shares_right = [nearest_is_alike(e.embed(new.rows), new.tasks[0].people) for e in (local, linear)]
    assert shares_right[0] > shares_right[1] + 0.05


@pytest.mark.parametrize("cells", BOTH)
def test_a_fit_continues_from_a_linear_map_or_from_the_root_of_the_same_method(
    cells: FlatClusters | HierarchicalClusters,
) -> None:
    linear = Ldml.from_options(**SMALL).fit(DATA)
    first = cells.with_options(dim=2, steps=1, rate=1e-9, local_steps=0).start_from(linear).fit(DATA)
    again = cells.with_options(dim=2, steps=1, rate=1e-9, local_steps=0).start_from(first).fit(DATA)
    for fitted in (first, again):
        np.testing.assert_allclose(fitted.embed(NEW.rows), linear.embed(NEW.rows), atol=1e-4)
    with pytest.raises(CannotGoOn, match="one linear map"):
        Ldml.from_options(**SMALL).start_from(first)


@pytest.mark.parametrize("cells", BOTH)
def test_the_l2_regulariser_makes_local_maps_smaller(cells: FlatClusters | HierarchicalClusters) -> None:
    sizes = [float(np.linalg.norm(cells.with_options(shrink=s).fit(DATA).learned["projection"])) for s in (0.0, 1e-2)]
    assert sizes[1] < 0.9 * sizes[0]


@pytest.mark.parametrize("cells", BOTH)
def test_fewer_faces_than_cells_are_refused(cells: FlatClusters | HierarchicalClusters) -> None:
    many = cells.with_options(**({"k": 500} if isinstance(cells, FlatClusters) else {"depth": 10}))
    with pytest.raises(TooFewPairs, match=r"(500|512) faces needed, 400 found"):
        many.fit(DATA)


@pytest.mark.parametrize("seed", range(3))
def test_k_means_is_no_worse_than_scikit_learns(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(300, 4, generator=draw) + 6 * torch.randn(5, 4, generator=draw)[torch.arange(300) % 5]
    means = k_means(z, 5, seed)
    oracle = KMeans(5, n_init=1, random_state=seed).fit(z.numpy())
    assert float((z - means[nearest(z, means)]).square().sum()) <= 1.3 * oracle.inertia_
    theirs = torch.from_numpy(oracle.cluster_centers_)
    again = KMeans(5, init=means.numpy(), n_init=1).fit(z.numpy())
    np.testing.assert_allclose(again.cluster_centers_, means.numpy(), atol=1e-4)  # it rests where Lloyd's rests
    np.testing.assert_array_equal(nearest(z, theirs).numpy(), oracle.predict(z.numpy()))


def test_k_means_accepts_very_few_rows() -> None:
    z = torch.randn(2, 3)
    assert torch.equal(k_means(z, 3), z[[0, 1, 0]])
    assert not k_means(z[:0], 3).any()
    assert k_means(torch.ones(9, 3), 3).isfinite().all()
