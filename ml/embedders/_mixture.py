"""A mixture of Gaussians with diagonal covariances, by expectation and maximisation."""

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Mixture:
    """means, variances: (k, d); log_weights: (k,)."""

    means: Tensor
    variances: Tensor
    log_weights: Tensor

    def log_joint(self, z: Tensor) -> Tensor:
        """ln p(s) p(z | s). z: (N, d). Returns (N, k)."""
        precision = 1 / self.variances
        square = (z * z) @ precision.T - 2 * z @ (self.means * precision).T + (self.means**2 * precision).sum(1)
        constant = self.variances.log().sum(1) + self.means.shape[1] * log(2 * pi)
        return self.log_weights - 0.5 * (square + constant)

    def assign(self, z: Tensor, threshold: float = 0.0, soften: float = 1.0) -> Tensor:
        """q_s = p(s | z), sparse, its rows sum to 1. (N, d) -> (N, k).

        soften: divides ln p(s | z); threshold: taken off each q_s, which is then cut at 0 and made to sum to 1 again.
        Taking it off, and not only cutting below it, leaves no jump: a face embeds alike in any batch.
        """
        q = (self.log_joint(z) / soften).softmax(1)
        if threshold == 0:
            return q
        q = (q - min(threshold, 0.5 / q.shape[1])).clamp_min_(0)
        return q / q.sum(1, keepdim=True)


def fit_mixture(
    z: Tensor, k: int, seed: int = 0, floor: float = 1e-2, rounds: int = 100, rest: float = 1e-4
) -> Mixture:
    """EM from k-means++ seeds. z: (N, d), N >= k.

    floor: least variance of a component along an axis, as a share of the whole data's; rest: stops when the mean log
    likelihood rises by less.
    """
    whole = z.var(0, unbiased=False).clamp_min(1e-12)
    means = z[_seeds(z / whole.sqrt(), k, torch.Generator().manual_seed(seed))]
    mixture = Mixture(means, whole.expand(k, -1) / k ** (2 / z.shape[1]), z.new_full((k,), -log(k)))
    before = -float("inf")
    squares = z * z
    for _ in range(rounds):
        joint = mixture.log_joint(z)
        now = float(joint.logsumexp(1).mean())
        if now - before < rest:
            break
        before = now
        q = joint.softmax(1)
        size = q.sum(0).clamp_min(1e-3)
        means = (q.T @ z) / size[:, None]
        variances = torch.maximum((q.T @ squares) / size[:, None] - means**2, floor * whole)
        mixture = Mixture(means, variances, (size / size.sum()).log())
    return mixture


def _seeds(z: Tensor, k: int, generator: torch.Generator) -> list[int]:
    """k-means++: each next one with a chance that grows with its squared distance from those there are."""
    chosen = [int(torch.randint(len(z), (1,), generator=generator))]
    nearest = (z - z[chosen[0]]).square().sum(1)
    while len(chosen) < k:
        chosen.append(int(torch.multinomial(nearest.cpu() + 1e-12, 1, generator=generator)))
        nearest = torch.minimum(nearest, (z - z[chosen[-1]]).square().sum(1))
    return chosen
