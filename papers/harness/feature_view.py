"""The descriptors that a fit uses: whole, or projected to the principal axes in which it looks for its maps.

Most of a fit's time goes into these axes. They are the same for all fits of a protocol, so they are computed once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder
from ml.types import Ids, Rows
from papers.harness.photos import Photos

BLOCK_ROWS = 2048


@dataclass(frozen=True, eq=False)
class FeatureView:
    """Descriptors, optionally in coordinates of principal axes.

    axes: (r, D) orthonormal, with several descriptors weighted to equal variance; None: whole descriptors
    origin: (r,) coordinates of the sample's mean, which are subtracted
    """

    photos: Photos
    features: str
    axes: Rows | None = None
    origin: Rows = field(default_factory=lambda: np.zeros(1, np.float32))
    kept: dict[str, Rows] = field(default_factory=dict)

    def rows(self, photo_set: str) -> Rows:
        """Return (N, D) descriptors, or (N, r) coordinates, of all photos of a set."""
        if self.axes is None:
            return self.photos.rows(photo_set, self.features)
        if photo_set not in self.kept:
            self.kept[photo_set] = self._project(self.photos.rows(photo_set, self.features), self.axes, self.origin)
        return self.kept[photo_set]

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.photos.blocks(self.features) if self.axes is None else ()

    def numbers(self, learned: Mapping[str, NDArray[Any]]) -> int:
        """Count the learned parameters, as they act on whole descriptors."""
        inside, whole = (1, 1) if self.axes is None else self.axes.shape
        return sum(a.size * whole // inside if a.shape[-1:] == (inside,) else a.size for a in learned.values())

    def _project(self, rows: Rows, axes: Rows, origin: Rows) -> Rows:
        coordinates = np.empty((len(rows), len(axes)), np.float32)
        for at in range(0, len(rows), BLOCK_ROWS):
            coordinates[at : at + BLOCK_ROWS] = rows[at : at + BLOCK_ROWS] @ axes.T - origin
        return coordinates


def view_features(photos: Photos, features: str, training: Ids, embedder: Embedder) -> FeatureView:
    """Return the view for a fit to these photos of LFW.

    Methods that divide rows by their norm need whole descriptors.
    """
    options = embedder.options()
    axes = options.get("axes")
    plain = not options.get("held_out") and options.get("start") != "learned" and not embedder.normalises_rows
    if axes is None or not plain or axes >= sum(photos.blocks(features)):
        return FeatureView(photos, features)
    return _fit_view(photos, features, training.tobytes(), axes, embedder.seed)


@lru_cache(maxsize=1)
def _fit_view(photos: Photos, features: str, training: bytes, axes: int, seed: int) -> FeatureView:
    import torch

    from ml.metric_learning.subspace import fit_subspace

    rows = torch.from_numpy(photos.rows("lfw", features))
    faces = np.frombuffer(training, np.int64).copy()
    space = fit_subspace(rows, faces, axes, seed, widths=photos.blocks(features))
    assert space.axes is not None
    return FeatureView(photos, features, space.axes.numpy(), (space.axes @ space.mean).numpy())
