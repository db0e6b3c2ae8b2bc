"""Matrices of full rank, of which L and L R are one point: both give M = L L^T (001, section 5.1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ml.manifolds.base import Manifold


@dataclass(frozen=True)
class Quotient(Manifold):
    """R_*^{n x p} / O(p). A vector is horizontal, so that none of it turns L in place, where Lemma 2 holds.

    metric: "scaled" is equation 1, Tr(xi G^-1 theta^T) with G = L^T L; "frobenius" the plain one that the paper names
    beside it
    descends: "euclidean" projects the partial derivatives, as printed, which changes M at second order of the step
    only; "metric" takes the gradient of equation 1, the partial derivatives times G, horizontal by itself
    """

    metric: Literal["scaled", "frobenius"] = "scaled"
    descends: Literal["euclidean", "metric"] = "euclidean"

    def project(self, at: Tensor, vector: Tensor) -> Tensor:
        """xi + L Lambda, Lambda G^2 + G^2 Lambda = xi^T L G - G L^T xi (Theorem 2), for an invertible G.

        With the Frobenius metric, Lambda G + G Lambda = xi^T L - L^T xi.
        """
        gram, mixed = at.T @ at, at.T @ vector
        strength, turn = torch.linalg.eigh(gram)
        inside = turn.T @ mixed @ turn
        if self.metric == "scaled":
            inside, strength = strength[:, None] * inside, strength.square()
        sums = strength[:, None] + strength
        floor = torch.finfo(sums.dtype).eps * sums[-1, -1]
        rotation = turn @ ((inside.T - inside) / torch.maximum(sums, floor)) @ turn.T
        return torch.addmm(vector, at, rotation)

    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """L + xi (equation 3, whose projection leaves a horizontal xi as it is)."""
        return at + tangent

    def gradient(self, at: Tensor, euclidean: Tensor) -> Tensor:
        if self.descends == "euclidean" or self.metric == "frobenius":
            return euclidean
        return euclidean @ (at.T @ at)
