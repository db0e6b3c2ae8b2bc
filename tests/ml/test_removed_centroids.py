"""Cells keep nothing of those whose faces were removed, and go on finding the others."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ml import registry
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.distances.averaged import Averaged
from ml.errors import Corrupt
from ml.indexes import load
from ml.indexes.base import Index
from ml.indexes.common.centroids import DISTANT
from ml.indexes.common.snapshot_file import write_snapshot
from ml.indexes.ivf import IvfIndex
from ml.types import Ids, Rows

DIM, CELLS, PEOPLE, PHOTOS, PHOTOS_OF_FIRST = 16, 16, 60, 25, 400
each_index = pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("ivf", EUCLIDEAN),
        ("ivf", INNER_PRODUCT),
        ("reranked", Averaged(blocks=(10, 6), shares=(0.4, 0.6), biases=(-20.0, -25.0))),
        ("two_stage", EUCLIDEAN),
        ("two_stage", INNER_PRODUCT),
    ],
    ids=str,
)
each_cell_index = pytest.mark.parametrize(
    ("kind", "metric"),
    [(kind, metric) for kind in ("ivf", "two_stage") for metric in (EUCLIDEAN, INNER_PRODUCT)],
    ids=str,
)
RANDOM_DIM, RANDOM_CELLS, RANDOM_FACES, PROBED_CELLS = 64, 64, 2048, 16


def draw_people(seed: int = 0) -> tuple[Rows, Rows]:
    """Return the faces of somebody who has many, and those of everybody else; all of length 1."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((PEOPLE, DIM)).repeat([PHOTOS_OF_FIRST] + [PHOTOS] * (PEOPLE - 1), axis=0)
    rows = centres + random.normal(0, 0.2, centres.shape)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows[:PHOTOS_OF_FIRST], rows[PHOTOS_OF_FIRST:]


def find_lists(index: Any) -> Any:
    """Return FAISS's lists of the cells that hold whole rows."""
    lists = getattr(index, "_whole", index)._lists
    return getattr(lists, "_lists", lists)


def find_cells(index: Any, rows: Rows) -> Ids:
    """Return the cell of the centroid nearest to each of (n, d) rows: (n,)."""
    cells: Ids = find_lists(index).quantizer.search(rows, 1)[1][:, 0]
    return cells


def read_sizes(index: Any) -> Ids:
    """Return the number of faces in each cell: (p,)."""
    lists = find_lists(index)
    return np.array([lists.invlists.list_size(cell) for cell in range(index.cells)])


def read_centroids(index: Any) -> Rows:
    """Return the (p, DIM) centroids of the cells that hold whole rows."""
    return np.asarray(faiss.downcast_index(find_lists(index).quantizer).reconstruct_n(0, index.cells))


def measure_recall(index: Index, queries: Rows) -> float:
    """Of the ten nearest, in a quarter of the cells."""
    approximate, exact = (index.search(queries, 10, m=m).ids for m in (CELLS // 4, CELLS))
    return float(np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(approximate, exact, strict=True)]))


def scale(rows: Any) -> Rows:
    """Scale (n, d) rows to length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


class Gallery:
    """An index of random faces, and the rows that it should hold under their ids."""

    def __init__(self, kind: str, metric: Distance, seed: int = 0) -> None:
        self.random, self.rows, self.next_id = np.random.default_rng(seed), dict[int, Rows](), 0
        self.index: Any = registry.build("indexes", kind, dim=RANDOM_DIM, metric=metric, p=RANDOM_CELLS)
        self.first = self.add(scale(self.random.standard_normal((RANDOM_FACES, RANDOM_DIM))))
        self.index.finish_build()

    def add(self, rows: Rows) -> Ids:
        """Add (n, d) rows under new ids, and return these."""
        ids = self.next_id + np.arange(len(rows))
        self.next_id += len(rows)
        self.index.add(ids, rows)
        self.rows.update(zip(ids.tolist(), rows, strict=True))
        return ids

    def add_similar(self, count: int, spread: float) -> Ids:
        """Add so many faces that are similar to each other, and return their ids."""
        centre = self.random.standard_normal((1, RANDOM_DIM))
        return self.add(scale(centre + spread * self.random.standard_normal((count, RANDOM_DIM))))

    def read(self, ids: Ids) -> Rows:
        return np.stack([self.rows[number] for number in ids.tolist()])

    def remove(self, ids: Ids) -> None:
        self.index.remove(ids)
        for number in ids.tolist():
            del self.rows[number]

    def find_first_of(self, ids: Ids) -> Ids:
        """Return those of the first faces that lie in cells of these ids."""
        cells = find_cells(self.index, self.read(ids))
        return self.first[np.isin(find_cells(self.index, self.read(self.first)), cells)]

    def count_lost(self) -> int:
        """Count the faces that a search by their own vector does not find in a quarter of the cells."""
        ids = np.array(sorted(self.rows))
        neighbours = self.index.search(self.read(ids), 1, m=PROBED_CELLS, candidates=1000)
        return int((neighbours.ids[:, 0] != ids).sum())


@each_index
def test_no_centroid_is_that_of_a_person_who_was_removed(kind: str, metric: Distance) -> None:
    removed, kept = draw_people()
    ids = np.arange(len(removed) + len(kept))
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(ids, np.concatenate([removed, kept]))
    mean = removed.mean(0)

    def find_distance() -> float:
        return float(np.linalg.norm(read_centroids(index) - mean, axis=1).min())

    assert find_distance() < 0.2
    index.remove(ids[: len(removed)])
    assert find_distance() > 0.5
    assert measure_recall(index, kept[::10]) > 0.9


@each_index
def test_an_index_from_which_everybody_was_removed_begins_anew(kind: str, metric: Distance) -> None:
    removed, kept = draw_people()
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(np.arange(len(removed)), removed)
    index.remove(np.arange(len(removed)))
    assert (len(index), index.cells) == (0, 1)
    assert (index.search(kept[:3], 5).ids == -1).all()
    index.add(np.arange(len(kept)), kept)
    assert sorted(index.search(kept[:1], len(kept), m=CELLS).ids[0].tolist()) == list(range(len(kept)))


@each_index
def test_cells_stay_good_while_faces_come_and_go(kind: str, metric: Distance) -> None:
    """Half of the faces are replaced, a few at a time."""
    rows = np.concatenate(draw_people())
    later = np.concatenate(draw_people(seed=1))
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(np.arange(len(rows)), rows)
    for chosen in np.array_split(np.random.default_rng(2).permutation(len(rows))[: len(rows) // 2], 50):
        index.remove(chosen)
        rows[chosen] = later[chosen]
        index.add(chosen, rows[chosen])
    assert measure_recall(index, rows[::10]) > 0.85


@each_index
def test_faces_are_still_found_where_others_who_are_unlike_all_of_them_come_and_go(
    kind: str, metric: Distance, tmp_path: Path
) -> None:
    """Those who come fill one cell, of which they are not a part of the centroid."""
    rows = np.concatenate(draw_people())
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(np.arange(len(rows)), rows)
    index.finish_build()
    unlike = 8 * rows[-1] + np.random.default_rng(3).normal(0, 0.02, (200, DIM)).astype(np.float32)
    ids = len(rows) + np.arange(len(unlike))
    index.add(ids, unlike)
    found = measure_recall(index, rows)
    for one in ids[:20]:
        index.remove(np.array([one]))
        assert measure_recall(index, rows) > found - 0.005
    restored = load(tmp_path / "index", index.save(tmp_path / "index"))
    restored.remove(ids[20:21])
    assert measure_recall(restored, rows) > found - 0.005


@each_index
def test_those_who_replace_nearly_all_others_are_found_and_have_an_index_built_anew(
    kind: str, metric: Distance
) -> None:
    """Of each cell, a face or two are left for which it was placed."""
    rows = np.concatenate(draw_people())
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(np.arange(len(rows)), rows)
    index.finish_build()
    assert not index.needs_rebuild()
    order = np.random.default_rng(4).permutation(len(rows))
    for chosen in np.array_split(order[: -2 * CELLS], 40):
        index.add(len(rows) + chosen, rows[chosen])
        index.remove(chosen)
    assert measure_recall(index, rows[::10]) > 0.9
    assert index.needs_rebuild()
    index.finish_build()
    assert not index.needs_rebuild()


@each_cell_index
def test_old_faces_are_found_after_a_removal_where_many_similar_ones_have_come(kind: str, metric: Distance) -> None:
    gallery = Gallery(kind, metric)
    newcomers = gallery.add_similar(500, 0.1)
    assert gallery.count_lost() == 0
    gallery.remove(newcomers[:1])
    assert gallery.count_lost() == 0


@each_cell_index
def test_old_faces_and_newcomers_are_found_while_those_leave_for_which_their_cell_was_placed(
    kind: str, metric: Distance, tmp_path: Path
) -> None:
    gallery = Gallery(kind, metric)
    newcomers = gallery.add_similar(500, 0.1)
    leaving = gallery.random.permutation(gallery.find_first_of(newcomers))
    for step, part in enumerate(np.array_split(leaving, 12)):
        gallery.remove(part)
        assert gallery.count_lost() == 0, step
        if step in (5, 10):
            gallery.index = load(tmp_path / "index", gallery.index.save(tmp_path / "index"))
    gallery.remove(newcomers[:1])
    assert gallery.count_lost() == 0


@pytest.mark.parametrize("seed", range(3))
@each_cell_index
def test_random_changes_lose_nobody_and_keep_every_row(kind: str, metric: Distance, seed: int, tmp_path: Path) -> None:
    gallery = Gallery(kind, metric, seed)
    for step in range(12):
        if gallery.random.random() < 0.5:
            gallery.add_similar(int(gallery.random.integers(20, 300)), float(gallery.random.choice([0.1, 0.3])))
        present = np.array(sorted(gallery.rows))
        cell = find_cells(gallery.index, gallery.read(gallery.random.choice(present, 1)))
        near = present[find_cells(gallery.index, gallery.read(present)) == cell]
        gallery.remove(gallery.random.permutation(near)[: int(gallery.random.integers(1, len(near) + 1))])
        present = np.array(sorted(gallery.rows))
        changed = gallery.random.choice(present, 50, replace=False)
        gallery.index.add(changed, gallery.read(changed))
        if step % 4 == 3:
            gallery.index = load(tmp_path / "index", gallery.index.save(tmp_path / "index"))
        assert gallery.index.ids().tolist() == present.tolist()
        assert gallery.count_lost() == 0, step
    assert (gallery.index.rows(present) == gallery.read(present)).all()


@each_cell_index
def test_an_empty_cell_lies_where_nobody_decides_and_draws_no_search(kind: str, metric: Distance) -> None:
    gallery = Gallery(kind, metric)
    cells = find_cells(gallery.index, gallery.read(gallery.first))
    gallery.remove(gallery.first[cells == cells[0]])
    gallery.remove(gallery.first[cells == cells[cells != cells[0]][0]][:1])
    assert read_sizes(gallery.index)[cells[0]] == 0
    assert set(read_centroids(gallery.index)[cells[0]].tolist()) == {DISTANT if metric == EUCLIDEAN else 0.0}
    gallery.add_similar(200, 0.3)
    assert read_sizes(gallery.index)[cells[0]] == 0
    assert gallery.count_lost() == 0


@each_cell_index
def test_cells_that_are_empty_from_the_beginning_lie_where_nobody_decides(kind: str, metric: Distance) -> None:
    rows = draw_people()[1][:20].repeat(60, axis=0)
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=40)
    index.add(np.arange(len(rows)), rows)
    is_empty = read_sizes(index) == 0
    assert is_empty.sum() >= 20
    assert (read_centroids(index)[is_empty] == (DISTANT if metric == EUCLIDEAN else 0)).all()


def test_faces_that_are_unlike_all_others_are_found_in_a_cell_that_was_empty() -> None:
    gallery = Gallery("ivf", INNER_PRODUCT)
    gallery.remove(gallery.first)
    gallery.first = gallery.add(scale(np.abs(gallery.random.standard_normal((RANDOM_FACES, RANDOM_DIM)))))
    gallery.index.finish_build()
    cells = find_cells(gallery.index, gallery.read(gallery.first))
    gallery.remove(gallery.first[cells == 0])
    newcomers = gallery.add(scale(-np.abs(gallery.random.standard_normal((9, RANDOM_DIM)))))
    assert read_sizes(gallery.index)[0] == 9
    assert not read_centroids(gallery.index)[0].any()
    assert gallery.count_lost() == 0
    gallery.remove(newcomers[:1])
    np.testing.assert_allclose(
        read_centroids(gallery.index)[0], scale(gallery.read(newcomers[1:]).mean(0)[None])[0], 1e-5
    )


@each_index
def test_faces_that_are_added_again_do_not_count_as_removed_and_leave_the_cells_as_they_are(
    kind: str, metric: Distance
) -> None:
    """A rename, a change of consent or a move adds the rows of somebody again, who may have a cell alone."""
    rows = np.concatenate(draw_people())
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, p=CELLS)
    index.add(np.arange(len(rows)), rows)
    index.finish_build()
    cells, sizes = find_cells(index, rows), read_sizes(index)
    for _ in range(5):
        index.add(np.arange(PHOTOS_OF_FIRST), rows[:PHOTOS_OF_FIRST])
    for cell in range(CELLS):
        index.add(np.flatnonzero(cells == cell), rows[cells == cell])
    assert not index.needs_rebuild()
    assert read_sizes(index).tolist() == sizes.tolist()


def test_an_index_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    index = IvfIndex(DIM, p=CELLS)
    index.add(np.arange(100), draw_people()[0][:100])
    header = index._header({name: value for name, value in index.state().items() if name != "fitted"})
    digest = write_snapshot(tmp_path / "index", header | {"trained": True}, index.write_body)
    with pytest.raises(Corrupt, match="fitted"):
        load(tmp_path / "index", digest)
