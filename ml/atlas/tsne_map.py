"""A map by t-SNE, which keeps neighbours together. It needs the package openTSNE.

Source: van der Maaten, Hinton 2008; Poličar, Stražar, Zupan 2024 for placing new faces on a map that exists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from ml.atlas.base import Coordinates, check_map_rows
from ml.errors import Unavailable, WrongShape
from ml.types import Rows

PERPLEXITY = 30.0
PLACING_PERPLEXITY = 5.0
PLACING_NEIGHBOURS = 25
"""A new face starts at the median of so many nearest reference faces."""
STEPS_BETWEEN_CHECKS = 10


def require_tsne() -> None:
    """Raises Unavailable if openTSNE is not installed."""
    if find_spec("openTSNE") is None:
        raise Unavailable("t-SNE needs the package openTSNE: install likeness[tsne], or choose the method pca")


@dataclass(frozen=True, eq=False)
class TsneMap:
    """Places faces beside the reference faces that they are near to.

    rows: (N, d) embeddings of the reference faces; coordinates: (N, 2); seed: of everything random
    """

    rows: Rows
    coordinates: Coordinates
    seed: int = 0

    @classmethod
    def fit(cls, rows: Rows, seed: int = 0, check: Callable[[], None] = lambda: None) -> Self:
        """Fit the coordinates of the reference faces. The same rows and seed give the same map.

        check: called from time to time; it may raise an exception to stop the fit
        Raises WrongShape, NotFinite, Unavailable.
        """
        check_map_rows(rows)
        require_tsne()
        from openTSNE import TSNE  # imported here, because it is an extra and takes seconds to load

        tsne = TSNE(
            perplexity=_limit_perplexity(PERPLEXITY, len(rows)), random_state=seed, n_jobs=1,
            callbacks=lambda *_: check(), callbacks_every_iters=STEPS_BETWEEN_CHECKS,
        )  # fmt: skip
        return cls(rows, np.array(tsne.fit(rows.astype(np.float64)), np.float64), seed)

    def locate(self, rows: Rows) -> Coordinates:
        """Return the coordinates of (n, d) embeddings: (n, 2). The reference faces stay where they are.

        Raises WrongShape, Unavailable.
        """
        if rows.ndim != 2 or rows.shape[1] != self.rows.shape[1]:
            raise WrongShape("the embeddings", f"(n, {self.rows.shape[1]})", rows.shape)
        if not len(rows):
            return np.empty((0, 2))
        perplexity = _limit_perplexity(PLACING_PERPLEXITY, len(self.rows))
        centre = (self.coordinates.max(0) + self.coordinates.min(0)) / 2  # the library moves it to the origin
        placed = self._restored.transform(
            rows.astype(np.float64), perplexity, k=min(PLACING_NEIGHBOURS, len(self.rows))
        )
        coordinates: Coordinates = np.array(placed, np.float64) + centre
        return coordinates

    @cached_property
    def _restored(self) -> Any:
        """The library's embedding of the reference faces."""
        require_tsne()
        from openTSNE import TSNEEmbedding, affinity

        affinities = affinity.PerplexityBasedNN(
            self.rows.astype(np.float64), _limit_perplexity(PERPLEXITY, len(self.rows)),
            random_state=self.seed, n_jobs=1,
        )  # fmt: skip
        return TSNEEmbedding(self.coordinates.copy(), affinities, random_state=self.seed, n_jobs=1)


def _limit_perplexity(perplexity: float, faces: int) -> float:
    return min(perplexity, (faces - 1) / 3)
