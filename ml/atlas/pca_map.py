"""A map by principal component analysis: the two directions in which the embeddings vary most.

Source: 003, which shows a gallery like this.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.atlas.base import Coordinates, check_map_rows
from ml.errors import Corrupt, WrongShape
from ml.types import Rows

AXES = 2


@dataclass(frozen=True, eq=False)
class PcaMap:
    """Maps an embedding x to axes (x - mean). A new face is placed exactly, without a new fit.

    mean: (d,); axes: (2, d), orthonormal; the second one is 0 if the embeddings vary in one direction only
    explained_variance: the share of the variance that each axis shows, 0..1
    """

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]
    explained_variance: tuple[float, float]

    @classmethod
    def fit(cls, rows: Rows) -> Self:
        """Fit to (N, d) embeddings. The same rows give the same map. Raises WrongShape, NotFinite."""
        check_map_rows(rows)
        mean = rows.mean(0, dtype=np.float64)
        centred = rows - mean
        variance = float(np.einsum("nd,nd->", centred, centred))
        axes = np.zeros((AXES, rows.shape[1]))
        principal = _find_axes(centred)
        axes[: len(principal)] = principal
        shares = ((centred @ axes.T) ** 2).sum(0) / variance
        return cls(mean, axes, (float(shares[0]), float(shares[1])))

    def locate(self, rows: Rows) -> Coordinates:
        """Return the coordinates of (n, d) embeddings: (n, 2). Raises WrongShape."""
        if rows.ndim != 2 or rows.shape[1] != len(self.mean):
            raise WrongShape("the embeddings", f"(n, {len(self.mean)})", rows.shape)
        coordinates: Coordinates = (rows - self.mean) @ self.axes.T
        return coordinates

    def to_bytes(self) -> bytes:
        """Return mean, axes and shares as little-endian float64."""
        shares = np.array(self.explained_variance)
        return np.concatenate([shares, self.mean, self.axes.ravel()]).astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. Raises Corrupt."""
        numbers = np.frombuffer(data[: len(data) // 8 * 8], "<f8").astype(np.float64)
        dim, rest = divmod(len(numbers) - AXES, 1 + AXES)
        if len(data) % 8 or dim < 1 or rest or not np.isfinite(numbers).all():
            raise Corrupt("the projection of an atlas cannot be read")
        shares, mean, axes = np.split(numbers, [AXES, AXES + dim])
        return cls(mean, axes.reshape(AXES, dim), (float(shares[0]), float(shares[1])))


def _find_axes(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the principal axes of (N, d) centred rows, at most two, by the smaller of both Gram matrices.

    The largest number of each axis is positive, so that rounding cannot mirror the map.
    """
    is_wide = centred.shape[1] > len(centred)
    gram = centred @ centred.T if is_wide else centred.T @ centred
    size = len(gram)
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=[max(0, size - AXES), size - 1])
    axes = (centred.T @ vectors if is_wide else vectors).T[::-1][values[::-1] > 1e-12 * values[-1]]
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    signed: NDArray[np.float64] = axes * np.where(largest < 0, -1.0, 1.0)
    return signed
