"""The neighbour graph: which faces are near enough to be of one person, from searches of the serving index."""

from collections.abc import Callable

import numpy as np

from ml.indexes.base import Index
from ml.types import Ids

FACES_PER_BATCH = 1024
NEIGHBOURS_PER_FACE = 32
MIN_PROBED_CELLS = 8
PROBED_SHARE = 1 / 128
"""Cells that a search probes, fewer than a search of a user does: a face that is missed by one of its neighbours is
found from the other side, or through a third."""


def find_links(
    index: Index,
    ids: Ids,
    sources: Ids,
    max_distance: float,
    neighbours: int = NEIGHBOURS_PER_FACE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ids:
    """Find the pairs of faces that lie at most `max_distance` apart: (L, 2) positions in `ids`, the smaller first.

    Each face contributes its nearest `neighbours` faces, so that the work grows with the faces and not their square.
    ids: (N,) the faces to link, rising; sources: (S,) positions of those whose neighbours are searched
    progress: called after each batch with the faces done and their number; it may raise an exception to stop
    """
    keys, m = [np.empty(0, np.int64)], max(MIN_PROBED_CELLS, round(PROBED_SHARE * index.cells))
    for start in range(0, len(sources), FACES_PER_BATCH):
        batch = sources[start : start + FACES_PER_BATCH]
        nearest = index.search(index.rows(ids[batch]), min(neighbours + 1, len(ids)), m=m)
        positions = np.minimum(np.searchsorted(ids, nearest.ids), len(ids) - 1)
        kept = (ids[positions] == nearest.ids) & (nearest.distances <= max_distance) & (positions != batch[:, None])
        face, rank = np.nonzero(kept)
        pairs = np.stack([batch[face], positions[face, rank]], axis=1)
        keys.append(np.unique(pairs.min(axis=1) * len(ids) + pairs.max(axis=1)))
        progress(start + len(batch), len(sources))
    unique = np.unique(np.concatenate(keys))
    return np.stack([unique // max(1, len(ids)), unique % max(1, len(ids))], axis=1)
