"""The centroids of cells keep nothing of faces that were removed, and go on leading to those that are left."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

MIN_FITTED_SHARE = 0.1
"""Of the faces for which a cell was placed, those that are left make its centroid alone while they are so many."""
MAX_MOVED_SHARE = 0.1
"""Once more of them have left, or come, the centroid may be so far from faces that others are nearer: of 4,096 random
faces and 500 similar ones, a search by its own vector missed up to 249 without it, one with it (8 of 64 cells)."""
MAX_PLACINGS = 8
"""So often are the faces of such a cell placed again at a removal. Mostly none moves any more at the third time."""
DISTANT = np.float32(1e15)
"""Each number of the centroid of an empty cell, for Euclidean distances: no face is as far, and its square is finite.
It is zero for inner products, where nothing is far from all faces."""

CellRows = tuple[Ids, Ids, Rows]


@dataclass(frozen=True)
class CellLists:
    """What the centroids of an index are made of.

    quantizer: the faiss.IndexFlat of the (p, d) centroids; read: returns the (n,) labels and ids and the (n, d) rows of
        a cell, which may be empty; place: takes the (n, d) rows of (n,) labels out, and adds each to the cell whose
        centroid is nearest to it
    """

    quantizer: Any
    metric: Distance
    read: Callable[[int], CellRows]
    place: Callable[[Ids, Rows], None]


@dataclass
class FittedFaces:
    """The faces for which the cells of an index were placed.

    last_ids: (p,) the highest of their ids in each cell, or in the index, which those of later faces exceed
    counts: (p,) of them in each cell; placed: (p,) those that were left when the rows of the cell were last placed
    """

    last_ids: Ids
    counts: NDArray[np.int64]
    placed: NDArray[np.int64]

    @classmethod
    def of(cls, last_id: int, sizes: NDArray[np.int64]) -> "FittedFaces":
        """Take all faces of cells of these (p,) sizes. last_id: the highest of their ids, -1 if there are none"""
        return cls(np.full(len(sizes), last_id, np.int64), sizes.copy(), sizes.copy())

    def begin_cell(self, cell: int, ids: Ids) -> None:
        """Take the faces of a cell with these (n,) ids, whose rows are to be placed."""
        self.last_ids[cell], self.counts[cell], self.placed[cell] = ids.max(initial=-1), len(ids), 0

    def to_state(self) -> dict[str, list[int]]:
        """Return what a snapshot keeps, for `from_state`."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_state(cls, state: dict[str, list[int]]) -> "FittedFaces":
        """Restore what `to_state` returned. Raises TypeError for another state."""
        return cls(**{name: np.array(values, np.int64) for name, values in state.items()})


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
    than MIN_FITTED_SHARE of them are left, the cell is placed for all its faces. Each time that a part of them has
    left, the faces of the cell that are nearer to another centroid move there.

    Returns whether there were cells whose faces may have moved, or empty ones.
    """
    moved = [cell for cell in cells.tolist() if _has_moved(cell, _move_centroid(cell, lists, fitted), fitted)]
    for cell in moved:
        _place_again(cell, lists, fitted)
    return bool(moved)


def _has_moved(cell: int, count: int, fitted: FittedFaces) -> bool:
    placed = int(fitted.placed[cell])
    return not placed or abs(count - placed) > MAX_MOVED_SHARE * placed


def _move_centroid(cell: int, lists: CellLists, fitted: FittedFaces) -> int:
    """Move a centroid to the faces for which its cell was placed, or is now, and return how many these are."""
    _, ids, rows = lists.read(cell)
    if np.count_nonzero(ids <= fitted.last_ids[cell]) < MIN_FITTED_SHARE * max(1, fitted.counts[cell]):
        fitted.begin_cell(cell, ids)
    is_fitted = ids <= fitted.last_ids[cell]
    view_centroids(lists.quantizer)[cell] = find_centre(rows[is_fitted], lists.metric)
    return int(np.count_nonzero(is_fitted))


def _place_again(cell: int, lists: CellLists, fitted: FittedFaces) -> None:
    """Move the rows of a cell that are nearer to another centroid there, and its centroid to those that stay."""
    for _ in range(MAX_PLACINGS):
        labels, ids, rows = lists.read(cell)
        fitted.placed[cell] = np.count_nonzero(ids <= fitted.last_ids[cell])
        is_moving = lists.quantizer.search(rows, 1)[1][:, 0] != cell
        if not is_moving.any():
            return
        lists.place(labels[is_moving], rows[is_moving])
        fitted.placed[cell] = _move_centroid(cell, lists, fitted)
