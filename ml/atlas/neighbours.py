"""Measure how much of the neighbourhoods of a space is left on a map of it.

Source: trustworthiness, Venna and Kaski 2001.
"""

from dataclasses import dataclass

import numpy as np

from ml.atlas.base import Coordinates
from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.types import Rows

NEIGHBOURS = 10
MAX_SAMPLED_FACES = 20_000
MAX_QUERIES = 1_000
QUERIES_PER_BLOCK = 100


@dataclass(frozen=True)
class NeighbourAgreement:
    """How well neighbours survive on a map.

    neighbours: k, at most 10
    kept: the mean share of a face's k nearest faces that are among its k nearest on the map, 0..1
    chance: what `kept` would be if faces lay on the map at random
    trustworthiness: 0..1; it is less than 1 where faces are near on the map that are not near in the space, by how far
        they are from it in the ranking
    faces, queries: how many faces were sampled, and for how many of them neighbours were compared
    """

    neighbours: int
    kept: float
    chance: float
    trustworthiness: float
    faces: int
    queries: int


def measure_neighbours(
    rows: Rows, coordinates: Coordinates, metric: Distance = EUCLIDEAN, seed: int = 0
) -> NeighbourAgreement:
    """Compare the neighbours of at most MAX_QUERIES faces, among at most MAX_SAMPLED_FACES, both drawn by the seed.

    rows: (N, d) embeddings, compared by `metric`; coordinates: (N, 2)
    Raises WrongShape if there are fewer than three faces, or not as many coordinates as faces.
    """
    if len(rows) < 3 or coordinates.shape != (len(rows), 2):
        raise WrongShape("the coordinates of 3 or more faces", f"({len(rows)}, 2)", coordinates.shape)
    draw = np.random.default_rng(seed)
    sample = np.sort(draw.permutation(len(rows))[:MAX_SAMPLED_FACES])
    space, plane = rows[sample], coordinates[sample]
    queries = np.sort(draw.permutation(len(sample))[:MAX_QUERIES])
    n = len(sample)
    k = min(NEIGHBOURS, max(1, (n - 1) // 2))
    kept = penalty = 0.0
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        block = queries[start : start + QUERIES_PER_BLOCK]
        each_query = np.arange(len(block))[:, None]
        distances = metric.distances(space[block], space).astype(np.float64)
        distances[each_query[:, 0], block] = -np.inf  # the face itself comes first, with rank 0
        ranks = np.empty(distances.shape, np.int64)
        ranks[each_query, np.argsort(distances, axis=1, kind="stable")] = np.arange(n)
        gaps = np.square(plane[block, None] - plane[None]).sum(2)
        gaps[each_query[:, 0], block] = np.inf
        nearest = np.argsort(gaps, axis=1, kind="stable")[:, :k]
        ranks_of_nearest = ranks[each_query, nearest]
        kept += float((ranks_of_nearest <= k).sum())
        penalty += float(np.maximum(ranks_of_nearest - k, 0).sum())
    q = len(queries)
    trustworthiness = 1 - 2 * penalty / (q * k * (2 * n - 3 * k - 1))
    return NeighbourAgreement(k, kept / (q * k), k / (n - 1), trustworthiness, n, q)
