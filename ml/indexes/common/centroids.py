"""The centroids of cells keep nothing of faces that were removed, and go on leading to those that are left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

MIN_FITTED_SHARE = 0.1
"""Of the faces for which a cell was placed, those that are left make its centroid alone while they are so many."""
MAX_DRIFT = 0.1
"""Once a centroid has moved further since the rows of its cell were last placed, in radii of the cell, others may be
nearer to these rows. Where faces leave at random it takes a removal of most of a cell, or one of a fifth bit by bit."""
MAX_PLACINGS = 8
"""So often are the faces of such a cell placed again at a removal. Mostly none moves any more at the third time."""
MAX_PLACED_PRODUCTS = 1e9
"""Of numbers of rows with those of centroids, in each placing of a removal: 0.1 s at most, for which searches wait. The
cells that have drifted furthest come first, and the others have their turn at later removals."""
MIN_RADIUS = 1e-12
DISTANT = np.float32(1e15)
"""Each number of the centroid of an empty cell, for Euclidean distances: no face is as far, and its square is finite.
It is zero for inner products, where nothing is far from all faces."""

CellRows = tuple[Ids, Ids, Rows]


@dataclass(frozen=True)
class CellLists:
    """What the centroids of an index are made of.

    quantizer: the faiss.IndexFlat of the (p, d) centroids; read: returns the (n,) labels and ids and the (n, d) rows of
        a cell, which may be empty; move_rows: takes the (n, d) rows of (n,) labels out, and adds each to the cell whose
        centroid is nearest to it
    """

    quantizer: Any
    metric: Distance
    read: Callable[[int], CellRows]
    move_rows: Callable[[Ids, Rows], None]


@dataclass
class FittedFaces:
    """The faces for which the cells of an index were placed.

    last_ids: (p,) the highest of their ids in each cell, or in the index, which those of later faces exceed
    counts: (p,) of them in each cell
    drift: (p,) the way of each centroid since the rows of its cell were last placed, in radii of the cell; it begins
        below zero, since k-means ends before its centroids are the means of their rows
    """

    last_ids: Ids
    counts: NDArray[np.int64]
    drift: NDArray[np.float64]

    @classmethod
    def of(cls, last_id: int, sizes: NDArray[np.int64]) -> "FittedFaces":
        """Take all faces of cells of these (p,) sizes. last_id: the highest of their ids, -1 if there are none"""
        return cls(np.full(len(sizes), last_id, np.int64), sizes.copy(), np.full(len(sizes), -MAX_DRIFT))

    def begin_cell(self, cell: int, ids: Ids) -> None:
        """Take the faces of a cell with these (n,) ids, whose rows are to be placed."""
        self.last_ids[cell], self.counts[cell] = ids.max(initial=-1), len(ids)
        self.drift[cell] = 2 * MAX_DRIFT

    def to_state(self) -> dict[str, list[float]]:
        """Return what a snapshot keeps, for `from_state`."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_state(cls, state: dict[str, list[float]]) -> "FittedFaces":
        """Restore what `to_state` returned. Raises KeyError for another state."""
        last_ids, counts = (np.array(state[name], np.int64) for name in ("last_ids", "counts"))
        return cls(last_ids, counts, np.array(state["drift"], np.float64))


def view_centroids(quantizer: Any) -> Rows:
    """Return the (p, d) centroids of a faiss.IndexFlat where they lie."""
    flat = faiss.downcast_index(quantizer)
    centroids: Rows = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
    return centroids


def find_centre(rows: Rows, metric: Distance) -> Rows:
    """Return the mean of (n, d) rows, for inner products of length 1 as in `fit_centroids`: (d,).

    Of no rows it is a constant: the mean of other centroids would keep what these lose with a later removal.
    """
    is_l2 = metric.faiss_metric == "L2"
    if not len(rows):
        return np.full(rows.shape[1], DISTANT if is_l2 else 0, np.float32)
    mean: Rows = rows.mean(0, dtype=np.float64).astype(np.float32)
    return mean if is_l2 else mean / max(float(np.linalg.norm(mean)), 1e-30)


def clear_empty_cells(quantizer: Any, sizes: NDArray[np.int64], metric: Distance) -> bool:
    """Give the cells that are empty the centroid of no rows, and return whether one had another.

    sizes: (p,) faces in each cell; for the others see `CellLists`
    """
    centroids, is_empty = view_centroids(quantizer), sizes == 0
    centre = find_centre(centroids[:0], metric)
    is_new = bool((centroids[is_empty] != centre).any())
    centroids[is_empty] = centre
    return is_new


def renew_centroids(cells: Ids, lists: CellLists, fitted: FittedFaces) -> bool:
    """Make the centroids of (n,) cells, from which faces were removed, of the faces that are left.

    The faces for which a cell was placed make its centroid alone. Those who came later may be unlike them all: with
    these, the centroid would move away from the others, which no search for them would find there any more. Once fewer
    than MIN_FITTED_SHARE of them are left, the cell is placed for all its faces. Each time that the centroid has moved
    away, the faces of the cell that are nearer to another one move there.

    Returns whether there were centroids that have moved away, or empty cells.
    """
    for cell in cells.tolist():
        _move_centroid(cell, lists, fitted)
    moved = cells[fitted.drift[cells] > MAX_DRIFT]
    _place_again(_choose_furthest(moved[np.argsort(-fitted.drift[moved])], lists), lists, fitted)
    return bool(len(moved))


def _choose_furthest(cells: Ids, lists: CellLists) -> list[int]:
    """Return the first of these (n,) cells that may be placed again together, at least one if there is one."""
    cost_of_row = lists.quantizer.ntotal * lists.quantizer.d
    costs = np.cumsum([cost_of_row * len(lists.read(cell)[0]) for cell in cells.tolist()])
    count = max(1, int(np.searchsorted(costs, MAX_PLACED_PRODUCTS, "right")))
    return [int(cell) for cell in cells[:count]]


def _move_centroid(cell: int, lists: CellLists, fitted: FittedFaces) -> None:
    """Move a centroid to the faces for which its cell was placed, or is now, and add to its drift."""
    _, ids, rows = lists.read(cell)
    if np.count_nonzero(ids <= fitted.last_ids[cell]) < MIN_FITTED_SHARE * max(1, fitted.counts[cell]):
        fitted.begin_cell(cell, ids)
    own = rows[ids <= fitted.last_ids[cell]]
    centroid = view_centroids(lists.quantizer)[cell]
    centre = find_centre(own, lists.metric)
    if len(own):
        way = float(np.linalg.norm(centre - centroid))
        fitted.drift[cell] += way / max(_find_radius(own, centre, lists.metric), MIN_RADIUS)
    centroid[:] = centre


def _find_radius(rows: Rows, centre: Rows, metric: Distance) -> float:
    """Return the root of the mean square of the distances of (n, d) rows to their (d,) centre, scaled as this is."""
    if metric.faiss_metric != "L2":
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), MIN_RADIUS)
    return float(np.sqrt(np.square(rows - centre).sum(1).mean()))


def _place_again(cells: Sequence[int], lists: CellLists, fitted: FittedFaces) -> None:
    """Move the rows of cells that are nearer to another centroid there, and the centroids to those that stay."""
    remaining = list(cells)
    for _ in range(MAX_PLACINGS):
        moving = [(cell, *_find_moving(cell, lists)) for cell in remaining]
        fitted.drift[remaining] = 0.0
        moving = [(cell, labels, rows) for cell, labels, rows in moving if len(labels)]
        if not moving:
            return
        lists.move_rows(*(np.concatenate([part[field] for part in moving]) for field in (1, 2)))
        remaining = [cell for cell, _, _ in moving]
        for cell in remaining:
            _move_centroid(cell, lists, fitted)


def _find_moving(cell: int, lists: CellLists) -> tuple[Ids, Rows]:
    """Return the labels and rows of a cell that are nearer to another centroid."""
    labels, _, rows = lists.read(cell)
    is_moving = lists.quantizer.search(rows, 1)[1][:, 0] != cell
    return labels[is_moving], rows[is_moving]
