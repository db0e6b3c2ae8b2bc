"""A mixture of Gaussians with diagonal covariances, fitted by expectation-maximisation.

CLML's local maps (003) and Fisher vectors use it.
"""

from dataclasses import dataclass
from functools import cached_property
from math import log, pi

import torch
from torch import Tensor

from ml.clustering.kmeans import k_means, members, nearest

MIN_LOG_POSTERIOR = -40.0
ROWS_PER_CHUNK = 4096
KMEANS_ROUNDS = 10


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of k Gaussians. means, variances: (k, d); log_weights: (k,)"""

    means: Tensor
    variances: Tensor
    log_weights: Tensor

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor]:
        """Constant (k,) and slopes (2 d, k) of ln p(s) p(z | s) = constant + lifted(z) @ slopes."""
        precision = 1 / self.variances
        square = (self.means**2 * precision).sum(1) + self.variances.log().sum(1) + self.means.shape[1] * log(2 * pi)
        return self.log_weights - 0.5 * square, torch.cat([self.means * precision, -0.5 * precision], 1).T.contiguous()

    def log_joint(self, z: Tensor) -> Tensor:
        """Compute ln p(s) p(z | s) of z (N, d): (N, k)."""
        return self.of_lifted(lifted(z))

    def of_lifted(self, both: Tensor) -> Tensor:
        """Compute `log_joint` from `lifted(z)`, if that is needed anyway: (N, 2 d) -> (N, k)."""
        constant, slopes = self._linear
        return torch.addmm(constant, both, slopes)

    def assign(self, z: Tensor, threshold: float = 0.0, soften: float = 1.0) -> Tensor:
        """Compute q_s = p(s | z) of z (N, d): (N, k), sparse, with rows that sum to 1.

        soften: divides ln p(s | z); threshold: subtracted from each q_s, which is then clipped at 0 and normalised.
        Subtracting the threshold keeps q continuous, so rounding cannot change an embedding much.
        """
        q, _ = posteriors(self.log_joint(z) / soften)
        if threshold == 0:
            return q
        q = (q - min(threshold, 0.5 / q.shape[1])).clamp_min_(0)
        return q / q.sum(1, keepdim=True)


def lifted(z: Tensor) -> Tensor:
    """Concatenate z (N, d) and its squares, in which each log density is linear: (N, 2 d)."""
    return torch.cat([z, z * z], 1)


def posteriors(joint: Tensor) -> tuple[Tensor, Tensor]:
    """Compute p(s | z) (N, k) and ln p(z) (N,) from ln p(s) p(z | s) (N, k). No p(s | z) is much below e^-40.

    Without this floor, the smallest would be denormal numbers, with which arithmetic takes ten times as long.
    """
    peak = joint.amax(1, keepdim=True)
    q = (joint - peak).clamp_min_(MIN_LOG_POSTERIOR).exp_()
    mass = q.sum(1, keepdim=True)
    return q.div_(mass), peak.add_(mass.log_())[:, 0]


def fit_mixture(
    z: Tensor, k: int, seed: int = 0, floor: float = 1e-2, rounds: int = 100, rest: float = 1e-4
) -> Mixture:
    """Fit a mixture to z (N, d), N >= k, by EM, starting from a few rounds of k-means.

    floor: smallest variance of a component along an axis, as a share of the variance of all data
    rest: EM stops when the mean log-likelihood rises by less
    """
    min_variance = floor * z.var(0, unbiased=False).clamp_min(1e-12)
    both = lifted(z)
    mixture = _most_likely(*_clusters(z, both, k, seed), min_variance)
    before = -float("inf")
    for _ in range(rounds):
        size, sums, now = _expected(mixture, both)
        if now - before < rest:
            break
        before = now
        mixture = _most_likely(size, sums, min_variance)
    return mixture


def _most_likely(size: Tensor, sums: Tensor, min_variance: Tensor) -> Mixture:
    """Maximise: return the mixture from the weights (k,) and sums (k, 2 d) of components; min_variance: (d,)"""
    size = size.clamp_min(1e-3)
    means, squares = (sums / size[:, None]).chunk(2, dim=1)
    return Mixture(means, torch.maximum(squares - means**2, min_variance), (size / size.sum()).log())


def _expected(mixture: Mixture, both: Tensor) -> tuple[Tensor, Tensor, float]:
    """Expect: return the weights (k,) and sums (k, 2 d) of components, and the mean log-likelihood."""
    size, sums = both.new_zeros(len(mixture.means)), both.new_zeros(len(mixture.means), both.shape[1])
    total = 0.0
    for at in range(0, len(both), ROWS_PER_CHUNK):
        rows = both[at : at + ROWS_PER_CHUNK]
        q, likelihood = posteriors(mixture.of_lifted(rows))
        total += float(likelihood.sum())
        size += q.sum(0)
        sums.addmm_(q.T, rows)
    return size, sums, total / len(both)


def _clusters(z: Tensor, both: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """Cluster by k-means along axes of equal variance: the sizes (k,) and sums (k, 2 d) of clusters."""
    scaled = z / z.std(0, unbiased=False).clamp_min(1e-6)
    return members(nearest(scaled, k_means(scaled, k, seed, KMEANS_ROUNDS)), k, both)
