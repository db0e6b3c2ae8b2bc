"""Draw every face equally often."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.sampling.base import Draw, Sampler
from ml.types import Ids


@dataclass(frozen=True)
class Uniform(Sampler):
    """Draws faces evenly, so that the loss is an unbiased estimate of the loss over all pairs, as the papers print it.

    size: faces in a batch
    """

    size: int = 640

    def over(self, values: NDArray[np.float64], tolerance: float, rng: np.random.Generator) -> Draw:
        known = np.flatnonzero(~np.isnan(values))

        def draw() -> Ids:
            return np.sort(rng.choice(known, min(self.size, len(known)), replace=False))

        return draw
