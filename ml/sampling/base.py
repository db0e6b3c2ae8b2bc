"""What every sampler promises."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids

Draw = Callable[[], Ids]
"""One batch: (B,) positions into `values`, each at most once, sorted."""


class Sampler(ABC):
    """Decides which faces meet in a batch, in which every pair is then compared."""

    @abstractmethod
    def over(self, values: NDArray[np.float64], tolerance: float, rng: np.random.Generator) -> Draw:
        """A source of batches. values: (n,), NaN where unknown; the same where |v_i - v_j| <= tolerance."""
