"""Whitening of descriptors: principal components for CoSiM and Sub-SML, and the covariance within people.

Source of the latter: within-class covariance normalisation, Hatch, Kajarekar and Stolcke 2006.
"""

from typing import Literal

import torch
from torch import Tensor

from ml.embedders.base import TaskData
from ml.metric_learning.initial_maps import deviations_within
from ml.metric_learning.pairs import PairSet
from ml.metric_learning.principal_axes import fit_principal_axes, whiten_axes

Whitening = Literal["within", "all", "none"]
MIN_VARIANCE = 1e-6
"""Smallest variance of an axis, as a share of the mean, so that an axis without variance does not become infinite."""


def fit_whitening(
    rows: Tensor, inner: int, pairs: PairSet, seed: int, kind: Whitening, prior: float
) -> tuple[Tensor, Tensor]:
    """Fit axes (r, D) and offset (r,) of x = axes row - offset, with a mean square of 1 over the pairs' faces.

    inner: largest r
    kind: "within": the intra-personal subspace, in which the faces of one person vary equally in all directions; n
        matched faces weigh n : prior against the assumption that they vary as all faces do
        "all": each coordinate has variance 1 over the pairs' faces
        "none": the descriptor itself, rotated; angles do not change if no axes are left out
    With the first two, the mean over those faces is 0. rows: (N, D); the principal axes are fitted to all of them.
    """
    axes, deviations, mean = fit_principal_axes(rows, min(inner, rows.shape[1], len(rows) - 1), seed)
    paired = rows[torch.unique(pairs.pairs)]
    if kind == "within":
        axes = _whiten_within((rows - mean) @ axes.T, pairs, prior) @ axes
    elif kind == "all":
        axes = whiten_axes(axes, deviations)
        axes = axes / ((paired - mean) @ axes.T).std(0).clamp_min(1e-6)[:, None]
    offset = axes @ (torch.zeros_like(mean) if kind == "none" else paired.mean(0))
    scale = torch.addmm(-offset, paired, axes.T).square().mean().sqrt().clamp_min(1e-12)
    return axes / scale, offset / scale


def _whiten_within(x: Tensor, pairs: PairSet, prior: float) -> Tensor:
    """Return the (r, r) map after which differences within a person have unit covariance. x: (N, r), principal."""
    same = pairs.sign > 0
    first, second = pairs.pairs[same].T
    u = (x[first] - x[second]) * pairs.weight[same, None].sqrt()
    trust = len(torch.unique(torch.cat([first, second])))
    parts = (u.T @ u, trust), (torch.diag(x.square().sum(0)), prior)
    within = sum((share / total.trace().clamp_min(1e-12)) * total for total, share in parts)
    strength, turn = torch.linalg.eigh(within)
    whitening: Tensor = (turn / strength.clamp_min(1e-6 * strength[-1]).sqrt()).T
    return whitening


def fit_within_covariance(x: Tensor, task: TaskData) -> Tensor:
    """Return the covariance among faces of one person, divided by its mean variance per axis: (r, r).

    The identity where nobody has two different faces. x: (n, r), one row for each face of the task
    """
    deviations = torch.cat(deviations_within(x, task)).double()
    covariance = deviations.T @ deviations
    mean_variance = covariance.trace() / len(covariance)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=x.device)
    scaled: Tensor = covariance / mean_variance if float(mean_variance) > 0 else identity
    return scaled.to(x.dtype)


def make_normalising_map(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return the symmetric (r, r) map A with A C A = I, where C is (1 - shrinkage) covariance + shrinkage I.

    With a shrinkage of 1, A is the identity. covariance: (r, r), with a mean variance of 1
    """
    variances, axes = torch.linalg.eigh(covariance.double())
    shrunken = ((1 - shrinkage) * variances + shrinkage).clamp_min(MIN_VARIANCE)
    normalising: Tensor = (axes / shrunken.sqrt()) @ axes.T
    return normalising.to(covariance.dtype)
