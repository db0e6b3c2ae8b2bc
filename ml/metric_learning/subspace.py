"""The subspace in which a linear map is learned."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.metric_learning.principal_axes import compute_block_weights
from ml.types import Ids

SAMPLE_FACES = 3000
"""Faces from which the axes are computed."""
StartMap = tuple[Tensor, Tensor]
"""A map to start from: its projection (m, D) and offset (m,), z = projection x - offset."""


@dataclass(frozen=True, eq=False)
class Subspace:
    """Coordinates (x - mean) axes^T of rows.

    axes: (r, D), orthonormal rows, each times the weights (D,); None if the coordinates are the rows less their mean
    mean: (D,)
    """

    axes: Tensor | None
    mean: Tensor
    weights: Tensor | None = None

    def project(self, rows: Tensor) -> Tensor:
        """Return the (N, r) coordinates of (N, D) rows."""
        return rows - self.mean if self.axes is None else torch.addmm(-(self.axes @ self.mean), rows, self.axes.T)

    def lift(self, maps: Tensor) -> Tensor:
        """Convert maps of coordinates (..., r) to maps of rows (..., D)."""
        return maps if self.axes is None else maps @ self.axes

    def restrict(self, projection: Tensor) -> Tensor:
        """Convert a map of rows (d, D) to the map of coordinates (d, r) that is equal to it within the subspace."""
        if self.axes is None:
            return projection
        return (projection if self.weights is None else projection / self.weights.square()) @ self.axes.T


def fit_subspace(
    rows: Tensor,
    faces: Ids,
    max_axes: int,
    seed: int,
    sample: int = SAMPLE_FACES,
    start: StartMap | None = None,
    widths: tuple[int, ...] = (),
) -> Subspace:
    """Fit the leading principal axes, exactly, to a sample of the rows.

    rows: (N, D); faces: (n,) indexes of the rows to use
    max_axes: largest r; 0 if the rows already are such coordinates about their origin
    sample: size of the sample, at least a quarter more than `max_axes`
    start: a map whose directions are included; the mean is then moved to the nearest point that it maps to its offset
    widths: widths of the descriptors in a row; several are weighted to equal variance first
    """
    if not max_axes:
        origin = rows.new_zeros(rows.shape[1])
        return Subspace(None, origin if start is None else _move_origin(origin, start))
    generator = torch.Generator().manual_seed(seed)
    count = max(sample, max_axes * 5 // 4)
    chosen = torch.from_numpy(faces)[torch.randperm(len(faces), generator=generator)[:count]]
    centred = rows[chosen.to(rows.device)]
    mean = centred.mean(0)
    centred -= mean
    weights = compute_block_weights(centred, widths)
    if weights is not None:
        centred *= weights
    axes = fit_exact_axes(centred, max_axes)
    if start is not None:
        inside = start[0] if weights is None else start[0] / weights
        axes = torch.linalg.qr(torch.cat([axes, inside]).T)[0].T
        mean = _move_origin(mean, start)
    return Subspace((axes if weights is None else axes * weights).contiguous(), mean, weights)


def fit_direction_subspace(
    rows: Tensor, faces: Ids, max_axes: int, seed: int, start: StartMap | None
) -> tuple[Subspace, Tensor]:
    """Fit the principal axes of rows divided by their norms; return the subspace and all (N, r) coordinates.

    rows: (N, D); faces: indexes of the rows from which the axes are computed; max_axes: largest r
    start: a map whose directions are included
    """
    length = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    chosen = torch.from_numpy(np.random.default_rng((seed, 4)).permutation(faces)[:SAMPLE_FACES]).to(rows.device)
    directions = rows[chosen] / length[chosen]
    subspace = fit_subspace(directions, np.arange(len(directions)), max_axes, seed, start=start)
    origin = subspace.project(torch.zeros_like(rows[:1]))
    # the coordinates of rows / length, without a copy of rows / length
    return subspace, subspace.project(rows).sub_(origin).div_(length).add_(origin)


def fit_leading_directions(x: Tensor, count: int, seed: int) -> Tensor:
    """Return the leading directions of a sample of (n, D) rows about the origin, (r, D), r at most `count`.

    Angles between rows hardly change when they are projected onto these directions.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[: max(SAMPLE_FACES, count * 5 // 4)]
    return fit_exact_axes(x[chosen.to(x.device)], count).contiguous()


def fit_exact_axes(centred: Tensor, max_axes: int) -> Tensor:
    """Return the (r, D) principal axes of (n, D) centred rows, by the smaller of the two Gram matrices."""
    if len(centred) < centred.shape[1]:
        strength, mix = torch.linalg.eigh(centred @ centred.T)
        basis: Tensor = torch.linalg.qr(centred.T @ _leading(strength, mix, max_axes))[0]
        return basis.T
    strength, mix = torch.linalg.eigh(centred.T @ centred)
    return _leading(strength, mix, max_axes).T


def _move_origin(mean: Tensor, start: StartMap) -> Tensor:
    """Return the point nearest to this mean that the map takes to its offset."""
    projection, offset = start
    moved: Tensor = mean + torch.linalg.pinv(projection) @ (offset - projection @ mean)
    return moved


def _leading(strength: Tensor, vectors: Tensor, count: int) -> Tensor:
    """Return the eigenvectors (columns) of the largest eigenvalues, largest first, without rounding errors."""
    kept = int((strength > 1e-6 * strength[-1]).sum())
    return vectors.flip(1)[:, : min(count, kept)]
