"""Descriptors of degraded photos, computed when they are needed and kept in files, for the benchmarks of sources."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ml.compensation import Describe, degrade_crops
from ml.descriptors.base import Descriptor
from ml.files import atomic_write
from ml.types import Crops, Ids, Rows
from papers.harness.photos import Photos

MAX_POOL_PHOTOS = 4_400
"""Photos of a set that may be degraded: half of them belong to the people that a split learns from."""
CROPS_PER_BATCH = 256


@dataclass(eq=False)
class DegradedPool:
    """Degrades photos of one set, and describes them by one recogniser.

    photos: (n,) rising indexes of the photos that may be degraded
    """

    photos: Ids
    crops: Crops
    descriptor: Descriptor
    folder: Path
    prefix: str
    _rows: dict[str, Rows] = field(default_factory=dict)

    @classmethod
    def open(cls, photos: Photos, photo_set: str, recogniser: str) -> "DegradedPool":
        """Draw the photos of a pool: the same each time."""
        recipe = photos.recipe(recogniser)
        [built] = recipe.built
        crops = photos.crops(photo_set, built.crop)
        chosen = np.sort(np.random.default_rng(99).permutation(len(crops))[:MAX_POOL_PHOTOS])
        return cls(chosen, crops, built, photos.cache / photo_set, f"{recogniser}-{recipe.keys[0]}-simulated")

    def describe(self, degradation: str, photos: Ids) -> Rows:
        """Return (n, d) descriptors of photos of the pool, degraded as this name of DEGRADATIONS says."""
        path = self.folder / f"{self.prefix}-{degradation.replace(' ', '-')}.npy"
        if degradation not in self._rows:
            shape = len(self.photos), self.descriptor.dim
            self._rows[degradation] = np.load(path) if path.exists() else np.full(shape, np.nan, np.float32)
        rows, positions = self._rows[degradation], np.searchsorted(self.photos, photos)
        missing = positions[np.isnan(rows[positions, 0])]
        for at in range(0, len(missing), CROPS_PER_BATCH):
            batch = missing[at : at + CROPS_PER_BATCH]
            crops = np.ascontiguousarray(self.crops[self.photos[batch]])
            rows[batch] = self.descriptor.describe(degrade_crops(crops, degradation))
        if len(missing):
            with atomic_write(path) as file:
                np.save(file, rows)
        return rows[positions]

    def describe_rows(self, photos: Ids) -> Describe:
        """Return a function that describes degraded rows. photos: (N,) the photo of each row"""

        def describe(degradation: str, positions: Ids) -> Rows:
            return self.describe(degradation, photos[positions])

        return describe
