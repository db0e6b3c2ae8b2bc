"""Find the pairs of faces that may be worth a question: near neighbours, scored by how near they are for their region.

A face in a dense region has near neighbours of other people; in a sparse region even the nearest is far. The score
therefore subtracts the mean distance of both faces to their own neighbours, as cross-domain similarity local scaling
does (Conneau et al., "Word translation without parallel data", 2018, section 2.3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

NEIGHBOURS_PER_FACE = 20
RADIUS_NEIGHBOURS = 10
"""Nearest faces whose mean distance is the radius of a face."""
BLOCK_FACES = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CandidatePairs:
    """Pairs of N faces.

    pairs: (P, 2) row numbers, the smaller first; distances: (P,) of the metric
    excess: (P,) distance less that of a face to itself, at least 0
    scores: (P,) twice the distance less the radii of both faces: the smaller, the more likely they are one person
    radii: (N,) mean distance of each face to its nearest faces
    """

    pairs: Ids
    distances: Floats
    excess: Floats
    scores: Floats
    radii: Floats


def find_candidates(rows: Rows, metric: Distance, answered: Ids | None = None) -> CandidatePairs:
    """Return each face's NEIGHBOURS_PER_FACE nearest neighbours as pairs, and the `answered` pairs.

    rows: (N, d) embeddings; answered: (L, 2) row numbers of further pairs
    """
    more = np.empty((0, 2), np.int64) if answered is None else np.sort(answered, axis=1)
    if len(rows) < 2:
        return make_candidates(rows, metric, more, np.zeros(len(rows)))
    count = min(NEIGHBOURS_PER_FACE, len(rows) - 1)
    nearest = np.empty((len(rows), count), np.int64)
    radii = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK_FACES):
        block = metric.distances(rows[start : start + BLOCK_FACES], rows)
        own = np.arange(len(block))
        block[own, start + own] = np.inf
        nearest[start : start + BLOCK_FACES] = np.argpartition(block, count - 1, axis=1)[:, :count]
        by_distance = np.sort(np.take_along_axis(block, nearest[start : start + BLOCK_FACES], 1), axis=1)
        radii[start : start + BLOCK_FACES] = by_distance[:, :RADIUS_NEIGHBOURS].mean(1)
    first = np.repeat(np.arange(len(rows)), count)
    pairs = np.sort(np.stack([first, nearest.ravel()], axis=1), axis=1)
    return make_candidates(rows, metric, np.unique(np.concatenate([pairs, more]), axis=0), radii)


def make_candidates(rows: Rows, metric: Distance, pairs: Ids, radii: Floats) -> CandidatePairs:
    """Measure and score pairs. rows: (N, d); pairs: (P, 2); radii: (N,)"""
    distances = metric.pair_distances(rows, pairs)
    to_itself = metric.paired_distances(rows, rows).astype(np.float64)
    excess = np.maximum(distances - to_itself[pairs].mean(1), 0.0)
    return CandidatePairs(pairs, distances, excess, 2 * distances - radii[pairs].sum(1), radii)
