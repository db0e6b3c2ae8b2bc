"""How near each face's nearest strangers lie, measured on the gallery itself without any name.

Recognisers put some kinds of faces, such as those of children, much closer together than others. A distance therefore
means little until it is compared with the distances of the same faces to strangers (adaptive score normalisation in
speaker recognition: Matejka et al. 2017, "Analysis of score normalization in multilingual speaker recognition").
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
MAX_COHORT_FACES = 3000
MIN_COHORT_FACES = 100
"""With fewer strangers their levels say nothing, and all faces count as typical."""
NEAREST_SHARES = (0.001, 0.003)
"""The level of a face is its mean distance to the strangers between these shares of the nearest."""
MIN_SKIPPED, MIN_NEAREST = 2, 3
"""At least so many of the nearest are left out, who may be the same person unnoticed, and so many more are used."""
DISTANCES_PER_BLOCK = 1 << 22


@dataclass(frozen=True, eq=False)
class StrangerLevels:
    """levels: (N,) mean distance of each face to its nearest strangers; typical: their median"""

    levels: Floats
    typical: float

    @classmethod
    def unknown(cls, faces: int) -> Self:
        """Take every face as typical."""
        return cls(np.zeros(faces), 0.0)

    @classmethod
    def measure(
        cls,
        rows: Rows,
        cohort: Ids,
        labels: Ids,
        metric: Distance,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Self:
        """Measure the levels of (N, d) rows against a cohort of strangers: (M,) positions.

        labels: (N,) cluster numbers; a face of the cohort is no stranger to the faces of its own cluster
        progress: called before each block with the faces done and their number; it may raise an exception to stop
        """
        if len(cohort) < MIN_COHORT_FACES:
            return cls.unknown(len(rows))
        first = max(MIN_SKIPPED, int(NEAREST_SHARES[0] * len(cohort)))
        last = max(first + MIN_NEAREST, round(NEAREST_SHARES[1] * len(cohort)))
        size = max(1, DISTANCES_PER_BLOCK // len(cohort))
        levels, strangers = np.empty(len(rows)), rows[cohort]
        for start in range(0, len(rows), size):
            progress(start, len(rows))
            part = slice(start, start + size)
            distances = metric.distances(rows[part], strangers)
            distances[labels[part, None] == labels[cohort]] = np.inf
            nearest = np.partition(distances, [first, last], axis=1)[:, first : last + 1]
            levels[part] = nearest.mean(axis=1)
        return cls(levels, float(np.median(levels)))


def draw_cohort(labels: Ids, rng: np.random.Generator) -> Ids:
    """Draw one face of each of at most MAX_COHORT_FACES clusters: positions in (N,) cluster numbers."""
    shuffled = rng.permutation(len(labels))
    _, first = np.unique(labels[shuffled], return_index=True)
    return np.sort(shuffled[rng.permutation(first)[:MAX_COHORT_FACES]])
