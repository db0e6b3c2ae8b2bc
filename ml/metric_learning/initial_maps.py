"""Linear maps from which a fit starts: whitening, Fisher's discriminant, and regional discriminants."""

from contextlib import suppress

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, eigsh
from torch import Tensor
from torch.nn.functional import pad

from ml.clustering.kmeans import k_means
from ml.embedders.base import TaskData
from ml.metric_learning.holdout import count_matched_faces, select_faces

FACES_PER_AXIS = 4
MIN_RIDGE = 1e-6
MAX_FACES_PER_PERSON = 10
"""In the variance within people, a person with more faces counts as if they had this many."""


def make_whitening(x: Tensor, dim: int) -> Tensor:
    """Fit WPCA within a subspace: (dim, r); rows beyond r are zero.

    x: (N, r), centred, its columns principal components
    """
    return torch.eye(dim, x.shape[1], device=x.device, dtype=x.dtype) / x.std(0).clamp_min(1e-6)


def fit_discriminant(x: Tensor, task: TaskData, dim: int, ridge: float, prior: float = 0.0) -> Tensor:
    """Fit Fisher's discriminant axes, each weighted by its information, sqrt((total - within) / total): (dim, r).

    With few labels the result approaches WPCA: n matched faces weigh n : prior against the assumption that a person
    varies as all faces do, and only the leading dim + n / 4 principal axes are used. Rows beyond r are zero.
    x: (N, r), one row for each face of the task, its columns principal components
    ridge: share of the total variance within people that is added to each axis
    """
    n, r = count_matched_faces(task), x.shape[1]
    x = (x - x.mean(0))[:, : dim + n // FACES_PER_AXIS]
    deviations = torch.cat([*deviations_within(x, task), x.new_zeros(1, x.shape[1])])
    within, total = deviations.T @ deviations, x.T @ x / len(x)
    trust = n / (n + prior) if n else 0.0
    within = trust * within + (1 - trust) * (within.trace() / total.trace().clamp_min(1e-12)) * total
    within.diagonal().add_(max(ridge, MIN_RIDGE) * within.trace().clamp_min(1e-12))
    root = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(root, total, upper=False)
    ratio, axes = _largest_eigenpairs(torch.linalg.solve_triangular(root, half.T, upper=False), dim)
    weight = ((ratio - 1) / ratio).clamp_min(1e-2).sqrt()
    best: Tensor = torch.linalg.solve_triangular(root.T, axes * weight, upper=True).T
    return pad(best, (0, r - best.shape[1], 0, dim - len(best)))


def fit_regional_discriminants(
    x: Tensor, task: TaskData, bases: int, regions: int, around: int, ridge: float, prior: float, seed: int
) -> Tensor:
    """Fit Fisher's axes in several regions, the same number in each.

    The centres of the regions are k-means centres in the space of the discriminant of all faces. A region consists of
    the `around` faces nearest to its centre, so regions overlap.
    x: (n, r), one row for each face of the task, its columns principal components
    Returns (bases or a few less, r), scaled so that faces have variance 1/2 along each axis; the mean of (b . u)^2 over
    pairs of faces is then 1.
    """
    per_region = min(max(1, bases // regions), x.shape[1])
    z = x @ fit_discriminant(x, task, per_region, ridge, prior).T
    axes = []
    for mean in k_means(z, regions, seed):
        near = (z - mean).square().sum(1).topk(min(around, len(z)), largest=False).indices
        inside = torch.zeros(len(z), dtype=torch.bool, device=z.device).index_fill_(0, near, True)
        axes.append(fit_discriminant(x[inside], select_faces(task, inside.cpu().numpy()), per_region, ridge, prior))
    basis = torch.cat(axes)
    return basis / (2**0.5 * (x @ basis.T).std(0)).clamp_min(1e-12)[:, None]


def _largest_eigenpairs(matrix: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues (at most dim,) and eigenvectors (r, dim) of a symmetric (r, r) matrix.

    They are sorted, the largest first. If only a few are needed, Lanczos' method takes a third of the time.
    """
    if 4 * dim < len(matrix):
        with suppress(ArpackError):
            start = np.ones(len(matrix))  # the same on every run
            values, vectors = eigsh(matrix.cpu().numpy(), k=dim, which="LA", v0=start)
            return torch.from_numpy(values).flip(0).to(matrix), torch.from_numpy(vectors).flip(1).to(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:dim], vectors.flip(1)[:, :dim]


def deviations_within(x: Tensor, task: TaskData) -> list[Tensor]:
    """Return rows whose sum of squares is the covariance among faces that are the same.

    From values: each face minus the mean of all faces with its value; a person with n photos counts as min(n, 10).
    From labels: half the difference of a pair, which counts as one photo.
    x: (n, r), one row for each face of the task. Returns two tensors, (a, r) from values and (b, r) from labels.
    """
    order = np.flatnonzero(~np.isnan(task.values))
    order = order[np.argsort(task.values[order], kind="stable")]
    values = task.values[order]
    low = np.searchsorted(values, values - task.tolerance, "left")
    high = np.searchsorted(values, values + task.tolerance, "right")
    matched = high - low > 1
    count = (high - low)[matched]
    sums = torch.cat([x.new_zeros(1, x.shape[1]).double(), x[order].double().cumsum(0)])
    mean = (sums[high[matched]] - sums[low[matched]]).to(x) / torch.from_numpy(count).to(x)[:, None]
    photos = np.minimum(count, MAX_FACES_PER_PERSON) / count
    weight = torch.from_numpy(photos * count / (count - 1)).to(x)
    faces = np.argsort(task.faces, kind="stable")
    labelled = task.pairs[task.same]
    ends = torch.from_numpy(faces[np.searchsorted(task.faces, labelled, sorter=faces)])
    share = 1 / (photos.sum() + len(labelled)) if len(labelled) or len(photos) else 0.0
    return [
        (x[order[matched]] - mean) * (share * weight).sqrt()[:, None],
        (x[ends[:, 0]] - x[ends[:, 1]]) * (share / 2) ** 0.5,
    ]
