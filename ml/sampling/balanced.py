"""Draw every person equally often, however many photos each has."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.sampling.base import Draw, Sampler
from ml.types import Ids


@dataclass(frozen=True)
class Balanced(Sampler):
    """Draws values (people) evenly, then faces that are the same as each, then further faces as negatives.

    If pairs were drawn evenly, people with many photos would dominate: 59 % of LFW's positive pairs show one man.
    groups: values in a batch; faces: faces of each, drawn with replacement (duplicates are removed)
    others: further faces, drawn among all known ones
    """

    groups: int = 128
    faces: int = 4
    others: int = 128

    def over(self, values: NDArray[np.float64], tolerance: float, rng: np.random.Generator) -> Draw:
        known = np.flatnonzero(~np.isnan(values))
        order = known[np.argsort(values[known], kind="stable")]
        levels = np.unique(values[known])
        first = np.searchsorted(values[order], levels - tolerance, "left")
        size = np.searchsorted(values[order], levels + tolerance, "right") - first
        first, size = first[size > 1], size[size > 1]

        def draw() -> Ids:
            chosen = rng.choice(len(first), min(self.groups, len(first)), replace=False)
            position = rng.integers(0, size[chosen, None], (len(chosen), self.faces))
            alike = order[first[chosen, None] + position].ravel()
            return np.unique(np.concatenate([alike, rng.choice(known, self.others)]))

        return draw
