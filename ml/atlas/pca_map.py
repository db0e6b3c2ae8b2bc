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
HEADER = b"pca-map2"
"""Earlier versions, whose data has no header, stored the mean of the embeddings: from it, and from the embeddings that
are left, those of erased faces can be computed."""


@dataclass(frozen=True, eq=False)
class PcaMap:
    """Maps an embedding x to axes x - offset. A new face is placed exactly, without a new fit.

    axes: (2, d), orthonormal; the second one is 0 if the embeddings vary in one direction only
    offset: (2,) where the mean of the embeddings lies on the axes. The mean itself is not kept
    explained_variance: the share of the variance that each axis shows, 0..1
    """

    axes: NDArray[np.float64]
    offset: NDArray[np.float64]
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
        return cls(axes, axes @ mean, (float(shares[0]), float(shares[1])))

    def locate(self, rows: Rows) -> Coordinates:
        """Return the coordinates of (n, d) embeddings: (n, 2). Raises WrongShape."""
        dim = self.axes.shape[1]
        if rows.ndim != 2 or rows.shape[1] != dim:
            raise WrongShape("the embeddings", f"(n, {dim})", rows.shape)
        coordinates: Coordinates = rows @ self.axes.T - self.offset
        return coordinates

    def to_bytes(self) -> bytes:
        """Return the header, then shares, offset and axes as little-endian float64."""
        shares = np.array(self.explained_variance)
        return HEADER + np.concatenate([shares, self.offset, self.axes.ravel()]).astype("<f8").tobytes()

    @staticmethod
    def is_written_by_this_version(data: bytes) -> bool:
        """Whether data is what `to_bytes` wrote, unless it was damaged."""
        return data.startswith(HEADER)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. Raises Corrupt, also if an earlier version wrote it."""
        body = data[len(HEADER) :]
        numbers = np.frombuffer(body[: len(body) // 8 * 8], "<f8").astype(np.float64)
        dim, rest = divmod(len(numbers) - 2 * AXES, AXES)
        is_whole = cls.is_written_by_this_version(data) and not len(body) % 8 and not rest and dim >= 1
        if not is_whole or not np.isfinite(numbers).all():
            raise Corrupt("the projection of an atlas cannot be read")
        shares, offset, axes = np.split(numbers, [AXES, 2 * AXES])
        return cls(axes.reshape(AXES, dim), offset, (float(shares[0]), float(shares[1])))


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
