"""The logistic loss of LDML over all pairs of a batch, and the scale that minimises it."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ml.metric_learning.logistic.operating_point import OperatingLoss
from ml.metric_learning.logistic.pair_batches import PairBatch
from ml.metric_learning.tensors import median_squared_distance, squared_distances

NEWTON_ROUNDS = 40


def logistic_loss(z: Tensor, bias: Tensor, sign: Tensor, weight: Tensor) -> tuple[float, Tensor, Tensor]:
    """Compute LDML's loss over all ordered pairs of a batch, and its gradient, as a graph Laplacian (003, equation 5).

    sum_ij w_ij ln(1 + exp(-y_ij (b - |z_i - z_j|^2)))
    z: (B, d); bias: (); sign: (B, B) of -1 and +1; weight: (B, B), symmetric like sign.
    Returns the loss, its gradient by z (B, d) and by the bias ().
    """
    margin = sign * (bias - squared_distances(z))
    pull = weight * sign * torch.sigmoid(-margin)  # the derivative of the loss by each squared distance
    by_z = 4 * (pull.sum(1, keepdim=True) * z - pull @ z)
    return float((weight * softplus(-margin)).sum()), by_z, -pull.sum()


def batch_loss(
    z: Tensor, bias: Tensor, batch: PairBatch, operating: OperatingLoss | None
) -> tuple[float, Tensor, Tensor]:
    """Compute `logistic_loss` of z (B, d), to which the loss at the operating point is added, with its gradients."""
    loss, by_z, by_bias = logistic_loss(z, bias, batch.sign, batch.weight)
    if operating is None:
        return loss, by_z, by_bias
    more, more_by_z = operating.measure(z, batch)
    return loss + more, by_z + more_by_z, by_bias


def spherical_loss(
    z: Tensor, bias: Tensor, batch: PairBatch, radius: float, operating: OperatingLoss | None = None
) -> tuple[float, Tensor, Tensor]:
    """Compute `batch_loss` of z (B, d) scaled to length `radius`, and its gradients by the unscaled z and the bias.

    If the radius is 0, z is not scaled.
    """
    if not radius:
        return batch_loss(z, bias, batch, operating)
    share = radius / z.norm(dim=1, keepdim=True).clamp_min(1e-12)
    loss, by_z, by_bias = batch_loss(share * z, bias, batch, operating)
    outward = (by_z * z).sum(1, keepdim=True) * (share / radius).square() * z
    return loss, share * (by_z - outward), by_bias


def fit_scale(z: Tensor, batch: PairBatch) -> tuple[float, float]:
    """Find the scale a and bias b that minimise the loss with b - a |z_i - z_j|^2, by damped Newton steps.

    z: (B, d)
    """
    unit = median_squared_distance(z)
    distances = (squared_distances(z) / unit).double().flatten()
    sign, weight = batch.sign.double().flatten(), batch.weight.double().flatten()
    inputs = torch.stack([-distances, torch.ones_like(distances)])  # margin = sign (a, b) . inputs
    solution = torch.tensor([1.0, 1.0], dtype=torch.float64, device=z.device)
    for _ in range(NEWTON_ROUNDS):
        wrong = torch.sigmoid(-sign * (solution @ inputs))
        gradient = -(inputs @ (weight * sign * wrong))
        ridge = 1e-6 * torch.eye(2, dtype=torch.float64).to(gradient)
        hessian = (inputs * (weight * wrong * (1 - wrong))) @ inputs.T + ridge
        step = torch.linalg.solve(hessian, gradient)
        solution = solution - step / max(1.0, float(step.abs().max()))
    return float(solution[0].clamp(0.1, 30.0)) / unit, float(solution[1])
