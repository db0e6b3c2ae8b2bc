"""The subspace that a linear map is sought in, and the map that it starts from."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor
from torch.nn.functional import pad

from ml.embedders.base import TaskData
from ml.metric_learning.batches import Batch
from ml.metric_learning.tensors import balance, median_squared_distance, squared_distances
from ml.types import Ids

FACES_AN_AXIS = 4
LEAST_RIDGE = 1e-6
Start = Literal["lda", "wpca", "pca", "random", "learned"]
Home = tuple[Tensor, Tensor]
"""A map to go on from: its projection (m, D) and offset (m,), z = projection x - offset."""


@dataclass(frozen=True, eq=False)
class Space:
    """Coordinates (x - mean) axes^T. axes: (r, D), orthonormal rows, each times the weights (D,); None for those of x
    itself; mean: (D,)."""

    axes: Tensor | None
    mean: Tensor
    weights: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """(N, D) -> (N, r)."""
        return rows - self.mean if self.axes is None else torch.addmm(-(self.axes @ self.mean), rows, self.axes.T)

    def outside(self, maps: Tensor) -> Tensor:
        """(..., r) maps of coordinates -> (..., D) of rows."""
        return maps if self.axes is None else maps @ self.axes

    def within(self, projection: Tensor) -> Tensor:
        """(d, D) a map of rows -> (d, r) the map of coordinates that does the same, of rows that the space holds."""
        if self.axes is None:
            return projection
        return (projection if self.weights is None else projection / self.weights.square()) @ self.axes.T


def principal_space(
    rows: Tensor,
    faces: Ids,
    most: int,
    seed: int,
    sample: int = 3000,
    home: Home | None = None,
    widths: tuple[int, ...] = (),
) -> Space:
    """The leading principal axes, exact for a sample of the rows.

    faces: which of the rows; most: r at most, 0 where the rows are such coordinates already, about their origin;
    sample: how many faces the axes and the mean are computed from, or a quarter more than `most` if that is more;
    home: a map whose directions are kept as well; the mean is then the nearest that it takes to its offset.
    widths: of the descriptors in a row; several are weighted so that they vary alike.
    """
    if not most:
        origin = rows.new_zeros(rows.shape[1])
        return Space(None, origin if home is None else _shared_origin(origin, home))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.from_numpy(faces)[torch.randperm(len(faces), generator=generator)[: max(sample, most * 5 // 4)]]
    some = rows[chosen.to(rows.device)]
    mean = some.mean(0)
    some -= mean
    weights = balance(some, widths)
    if weights is not None:
        some *= weights
    if len(some) < some.shape[1]:
        strength, mix = torch.linalg.eigh(some @ some.T)
        axes = torch.linalg.qr(some.T @ _leading(strength, mix, most))[0].T
    else:
        strength, mix = torch.linalg.eigh(some.T @ some)
        axes = _leading(strength, mix, most).T
    if home is not None:
        inside = home[0] if weights is None else home[0] / weights
        axes = torch.linalg.qr(torch.cat([axes, inside]).T)[0].T
        mean = _shared_origin(mean, home)
    return Space((axes if weights is None else axes * weights).contiguous(), mean, weights)


def _shared_origin(mean: Tensor, home: Home) -> Tensor:
    """The nearest to this mean that the map takes to its offset."""
    projection, offset = home
    moved: Tensor = mean + torch.linalg.pinv(projection) @ (offset - projection @ mean)
    return moved


def _leading(strength: Tensor, vectors: Tensor, most: int) -> Tensor:
    """The columns of the largest eigenvalues, largest first, without those that are nothing but rounding."""
    kept = int((strength > 1e-6 * strength[-1]).sum())
    return vectors.flip(1)[:, : min(most, kept)]


def whitened(x: Tensor, dim: int) -> Tensor:
    """WPCA in the space. x: (N, r), centred, its axes principal. Returns (dim, r)."""
    return torch.eye(dim, x.shape[1], device=x.device, dtype=x.dtype) / x.std(0)[:dim, None].clamp_min(1e-6)


def discriminant(x: Tensor, task: TaskData, dim: int, ridge: float, prior: float = 0.0) -> Tensor:
    """Fisher's discriminant axes, each weighted by what it tells: sqrt of (total - within) / total.

    Where little is labelled this goes over into WPCA: n faces that have a labelled fellow weigh n : prior against the
    belief that a person varies as all faces do, and the axes are sought within the leading dim + n / 4 principal ones.
    x: (N, r), one row a face of the task, its columns principal; ridge: share of the whole variance within that each
    axis gets. Returns (dim, r).
    """
    n, r = with_fellows(task), x.shape[1]
    x = (x - x.mean(0))[:, : dim + n // FACES_AN_AXIS]
    spans = torch.cat([*_around_fellows(x, task), x.new_zeros(1, x.shape[1])])
    within, whole = spans.T @ spans, x.T @ x / len(x)
    trust = n / (n + prior) if n else 0.0
    within = trust * within + (1 - trust) * (within.trace() / whole.trace().clamp_min(1e-12)) * whole
    within.diagonal().add_(max(ridge, LEAST_RIDGE) * within.trace().clamp_min(1e-12))
    root = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(root, whole, upper=False)
    ratio, axes = _largest(torch.linalg.solve_triangular(root, half.T, upper=False), dim)
    told = ((ratio - 1) / ratio).clamp_min(1e-2).sqrt()
    best: Tensor = torch.linalg.solve_triangular(root.T, axes * told, upper=True).T
    return pad(best, (0, r - best.shape[1]))


def _largest(matrix: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Its largest eigenvalues (at most dim,) and their eigenvectors (r, dim), largest first. matrix: (r, r), symmetric.

    Where they are a few of many, by Lanczos' method, in a third of the time.
    """
    if 4 * dim < len(matrix):
        with suppress(ArpackError):
            start = np.ones(len(matrix))  # the same on every run
            values, vectors = eigsh(matrix.cpu().numpy(), k=dim, which="LA", v0=start)
            return torch.from_numpy(values).flip(0).to(matrix), torch.from_numpy(vectors).flip(1).to(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:dim], vectors.flip(1)[:, :dim]


def with_fellows(task: TaskData) -> int:
    """How many faces are known to have another of the same: what there is to learn from."""
    known = np.sort(task.values[~np.isnan(task.values)])
    low = np.searchsorted(known, known - task.tolerance, "left")
    high = np.searchsorted(known, known + task.tolerance, "right")
    return int((high - low > 1).sum()) + len(np.unique(task.pairs[task.same]))


def _around_fellows(x: Tensor, task: TaskData) -> list[Tensor]:
    """Rows whose sum of squares is the covariance among faces that are the same.

    Derived: each face less the mean of its fellows and itself, a person with n photos counting as min(n, 10).
    Explicit: half the difference of a pair, counting as one photo.
    """
    order = np.flatnonzero(~np.isnan(task.values))
    order = order[np.argsort(task.values[order], kind="stable")]
    values = task.values[order]
    low = np.searchsorted(values, values - task.tolerance, "left")
    high = np.searchsorted(values, values + task.tolerance, "right")
    several = high - low > 1
    count = (high - low)[several]
    before = torch.cat([x.new_zeros(1, x.shape[1]).double(), x[order].double().cumsum(0)])
    mean = (before[high[several]] - before[low[several]]).to(x) / torch.from_numpy(count).to(x)[:, None]
    heard = np.minimum(count, 10) / count
    weight = torch.from_numpy(heard * count / (count - 1)).to(x)
    faces = np.argsort(task.faces, kind="stable")
    told = task.pairs[task.same]
    ends = torch.from_numpy(faces[np.searchsorted(task.faces, told, sorter=faces)])
    share = 1 / (heard.sum() + len(told)) if len(told) or len(heard) else 0.0
    return [
        (x[order[several]] - mean) * (share * weight).sqrt()[:, None],
        (x[ends[:, 0]] - x[ends[:, 1]]) * (share / 2) ** 0.5,
    ]


def calibrated(z: Tensor, batch: Batch, rounds: int = 40) -> tuple[float, float]:
    """Scale a and bias b at which the logistic loss with b - a |z_i - z_j|^2 is least, by Newton's method, damped."""
    unit = median_squared_distance(z)
    flat = (squared_distances(z) / unit).double().flatten()
    sign, weight = batch.sign.double().flatten(), batch.weight.double().flatten()
    inputs = torch.stack([-flat, torch.ones_like(flat)])  # margin = sign (a, b) . inputs
    found = torch.tensor([1.0, 1.0], dtype=torch.float64, device=z.device)
    for _ in range(rounds):
        wrong = torch.sigmoid(-sign * (found @ inputs))
        slope = -(inputs @ (weight * sign * wrong))
        curve = (inputs * (weight * wrong * (1 - wrong))) @ inputs.T + 1e-6 * torch.eye(2, dtype=torch.float64).to(
            slope
        )
        move = torch.linalg.solve(curve, slope)
        found = found - move / max(1.0, float(move.abs().max()))
    return float(found[0].clamp(0.1, 30.0)) / unit, float(found[1])
