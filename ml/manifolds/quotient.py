"""Matrices of full rank, of which L and L R are one point: both give M = L L^T (001, section 5.1)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ml.manifolds.base import Manifold


@dataclass(frozen=True)
class QuotientManifold(Manifold):
    """R_*^{n x p} / O(p). A vector is horizontal, so that none of it turns L in place, where Lemma 2 holds.

    metric: "scaled" is equation 1, Tr(xi G^-1 theta^T) with G = L^T L; "frobenius" the plain one that the paper names
    beside it; "inverse" Tr(xi G theta^T), which rotations leave alone as well
    descends: "euclidean" projects the partial derivatives, as printed, which changes M at second order of the step
    only; "metric" takes the gradient of the metric, the partial derivatives times G, 1 or G^-1, horizontal by itself.
    With G^-1 weak directions learn as fast as strong ones: scaled gradient descent (Tong, Ma and Chi 2021)
    """

    metric: Literal["scaled", "frobenius", "inverse"] = "scaled"
    descends: Literal["euclidean", "metric"] = "euclidean"

    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        """xi + L Lambda, Lambda G^2 + G^2 Lambda = xi^T L G - G L^T xi (Theorem 2), for an invertible G.

        With the Frobenius metric, Lambda G + G Lambda = xi^T L - L^T xi; with the inverse, 2 Lambda = xi^T L G^-1 -
        G^-1 L^T xi. By the eigenvectors of G, or, near where they were computed, by those that were kept.
        """
        gram, mixed = at.T @ at, at.T @ vector
        if self.metric == "inverse":
            through = _through(gram, mixed)
            return torch.addmm(vector, at, through.T - through, alpha=0.5)
        turn = kept.get("turn") if kept else None
        inside = None if turn is None else self._nearly_diagonal(turn.T @ gram @ turn, turn.T @ mixed @ turn)
        if inside is None:
            strength, turn = torch.linalg.eigh(gram)
            inside = self._diagonal(strength, turn.T @ mixed @ turn)
            if kept is not None:
                kept["turn"] = turn
        assert turn is not None
        return torch.addmm(vector, at, turn @ inside @ turn.T)

    def _diagonal(self, strength: Tensor, mixed: Tensor) -> Tensor:
        """Lambda for a G that is diagonal."""
        if self.metric == "scaled":
            mixed, strength = strength[:, None] * mixed, strength.square()
        sums = strength[:, None] + strength
        floor = torch.finfo(sums.dtype).eps * sums[-1, -1]
        return (mixed.T - mixed) / torch.maximum(sums, floor)

    def _nearly_diagonal(self, gram: Tensor, mixed: Tensor) -> Tensor | None:
        """Lambda where what G has off its diagonal is small, by correcting the above; None where it is not.

        Each round leaves the share rho of the error: rho^3 is below rounding where the last rest, rho^2, is so small.
        """
        if self.metric == "scaled":
            gram, mixed = gram @ gram, gram @ mixed
        diagonal, wanted = gram.diagonal(), mixed.T - mixed
        sums = diagonal[:, None] + diagonal
        solution = wanted / sums
        rest = wanted
        for _ in range(2):
            half = gram @ solution
            rest = wanted - half + half.T
            solution = solution + rest / sums
        small = torch.finfo(gram.dtype).eps ** (2 / 3)
        return solution if float(rest.norm()) <= small * float(wanted.norm()) else None

    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """L + xi (equation 3, whose projection leaves a horizontal xi as it is)."""
        return at + tangent

    def gradient(self, at: Tensor, euclidean: Tensor) -> Tensor:
        if self.descends == "euclidean" or self.metric == "frobenius":
            return euclidean
        gram = at.T @ at
        return euclidean @ gram if self.metric == "scaled" else _through(gram, euclidean.T).T


def _through(gram: Tensor, vector: Tensor) -> Tensor:
    """G^-1 v, G a little lifted so that a lost rank does no harm."""
    lift = torch.finfo(gram.dtype).eps * gram.trace()
    solution: Tensor = torch.linalg.solve(
        gram + lift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), vector
    )
    return solution
