"""The interface of a batch sampler."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids

Draw = Callable[[], Ids]
"""Draws one batch: (B,) positions in `values`, sorted, each at most once."""


class Sampler(ABC):
    """Chooses the faces of a batch. All pairs in a batch are then compared."""

    @abstractmethod
    def over(self, values: NDArray[np.float64], tolerance: float, rng: np.random.Generator) -> Draw:
        """Return a function that draws batches.

        values: (n,), NaN if unknown; faces are the same if |v_i - v_j| <= tolerance
        """
