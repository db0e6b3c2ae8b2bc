"""CoSiM's arithmetic: inner products of projected descriptors under a sigmoid (000, equations 1 to 13).

It handles n descriptors and F fits at once. A pair has m logits: one for SML and mass CoSiM, n for average CoSiM.
P(same) = sum_i a_i sigmoid(z_i) is computed as a logarithm, so that nothing overflows.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def cross_entropy(z: Tensor, sign: Tensor, weight: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy (equation 3) of g = sum_i a_i sigmoid(z_i); with one logit, that of mass CoSiM.

    z: (m, F, B); sign: (F, B) +1 same, -1 not; weight: (F, B); shares: (m, F) a_i, which sum to 1 over m.
    Returns the loss (F,) and its gradient by z (m, F, B), which equations 5 and 12 print with the opposite sign.
    """
    signed = sign * z
    log_terms = shares.log()[:, :, None] + logsigmoid(signed)
    log_likelihood = log_terms.logsumexp(0)  # the logarithm of the probability given to the true answer
    by_z = -weight * sign * (log_terms - log_likelihood).exp() * torch.sigmoid(-signed)
    return -(weight * log_likelihood).sum(-1), by_z


def compute_log_odds(z: Tensor, shares: Tensor) -> Tensor:
    """Compute log g - log(1 - g): (F, B). z: (m, F, B); shares: (m, F)"""
    log_a = shares.log()[:, :, None]
    return (log_a + logsigmoid(z)).logsumexp(0) - (log_a + logsigmoid(-z)).logsumexp(0)


def draw_dropout_mask(shape: torch.Size, dropped: float, generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw dropout factors: 0 or 1 / (1 - dropped), with probabilities rounded to 1/256.

    The mask is (n, ...), as `shape` says.
    """
    kept, count = round(256 * (1 - dropped)), shape.numel()
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=like.device)
    random_bytes = words.random_(-(2**63), None, generator=generator).view(torch.uint8)[:count].view(shape)
    return (random_bytes < kept).to(like.dtype).mul_(256 / kept)


@dataclass(eq=False)
class Branches:
    """The networks: p_i = W_i x_i for both images, with the same W_i; s_i = <p_i, q_i>.

    weights: (n, F, r, r); bias: (m, F)
    summed: whether the s_i are summed to one logit (mass, equation 4), or each is a logit (average, equation 9)
    """

    weights: Tensor
    bias: Tensor
    summed: bool

    @classmethod
    def start(cls, n: int, width: int, bias: Tensor, *, summed: bool) -> Self:
        """Start with W_i = I. bias: (m, F)"""
        eye = torch.eye(width, dtype=bias.dtype, device=bias.device)
        return cls(eye.repeat(n, bias.shape[1], 1, 1), bias.clone(), summed)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weights, self.bias]

    def logits(self, x: Tensor) -> Tensor:
        """Compute the logits, (m, F, B). x: (n, F, 2B, r), the first images of the pairs and then the second ones"""
        return self._multiply(*(x @ self.weights.mT).chunk(2, dim=2))

    def gradients(self, x: Tensor, sign: Tensor, weight: Tensor, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the loss (F,) and its gradient by each parameter (equations 6 and 13, with corrected signs).

        x: as for logits, after dropout; sign, weight: (F, B); shares: (m, F).
        """
        first, second = (x @ self.weights.mT).chunk(2, dim=2)
        loss, by_z = cross_entropy(self._multiply(first, second), sign, weight, shares)
        by_p = torch.cat([by_z[..., None] * second, by_z[..., None] * first], dim=2)
        return loss, [by_p.mT @ x, by_z.sum(2)]

    def _multiply(self, p: Tensor, q: Tensor) -> Tensor:
        s = (p * q).sum(-1)
        return (s.sum(0, keepdim=True) if self.summed else s) + self.bias[:, :, None]
