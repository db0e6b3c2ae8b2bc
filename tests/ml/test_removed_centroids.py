"""Cells keep nothing of those whose faces were removed, and go on finding the others."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ml import registry
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.distances.averaged import Averaged
from ml.indexes import load
from ml.indexes.base import Index
from ml.types import Rows

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


def draw_people(seed: int = 0) -> tuple[Rows, Rows]:
    """Return the faces of somebody who has many, and those of everybody else; all of length 1."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((PEOPLE, DIM)).repeat([PHOTOS_OF_FIRST] + [PHOTOS] * (PEOPLE - 1), axis=0)
    rows = centres + random.normal(0, 0.2, centres.shape)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows[:PHOTOS_OF_FIRST], rows[PHOTOS_OF_FIRST:]


def read_centroids(index: Any) -> Rows:
    """Return the (p, DIM) centroids of the cells that hold whole rows."""
    lists = getattr(index, "_whole", index)._lists
    quantizer = getattr(lists, "_lists", lists).quantizer
    return np.asarray(faiss.downcast_index(quantizer).reconstruct_n(0, index.cells))


def measure_recall(index: Index, queries: Rows) -> float:
    """Of the ten nearest, in a quarter of the cells."""
    approximate, exact = (index.search(queries, 10, m=m).ids for m in (CELLS // 4, CELLS))
    return float(np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(approximate, exact, strict=True)]))


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
