"""The quotient manifold: full-rank matrices, of which L and L R are one point, since both give M = L L^T.

Source: 001, section 5.1.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ml.manifolds.base import Manifold


@dataclass(frozen=True)
class QuotientManifold(Manifold):
    """R_*^{n x p} / O(p). Horizontal vectors, which contain no rotation of L, are those that satisfy Lemma 2 of 001.

    metric: "scaled": equation 1, Tr(xi G^-1 theta^T) with G = L^T L; "frobenius": the plain inner product, which the
        paper also mentions; "inverse": Tr(xi G theta^T), which is invariant to rotations as well
    descends: "euclidean" projects the partial derivatives, as printed. This differs from plain descent on M only at
        second order in the step. "metric" uses the gradient in the metric: the partial derivatives times G, 1 or G^-1,
        which is horizontal. With G^-1, weak directions learn as fast as strong ones: scaled gradient descent (Tong, Ma
        and Chi 2021).
    """

    metric: Literal["scaled", "frobenius", "inverse"] = "scaled"
    descends: Literal["euclidean", "metric"] = "euclidean"

    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        """Return xi + L Lambda with Lambda G^2 + G^2 Lambda = xi^T L G - G L^T xi (Theorem 2). G must be invertible.

        With the Frobenius metric, Lambda G + G Lambda = xi^T L - L^T xi; with the inverse metric, 2 Lambda =
        xi^T L G^-1 - G^-1 L^T xi. Solved by the eigenvectors of G, or by cached ones of a nearby point.
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
        """Return Lambda for a diagonal G."""
        if self.metric == "scaled":
            mixed, strength = strength[:, None] * mixed, strength.square()
        sums = strength[:, None] + strength
        floor = torch.finfo(sums.dtype).eps * sums[-1, -1]
        return (mixed.T - mixed) / torch.maximum(sums, floor)

    def _nearly_diagonal(self, gram: Tensor, mixed: Tensor) -> Tensor | None:
        """Return Lambda for a nearly diagonal G by iterative correction; None if its off-diagonal part is too large.

        Each round reduces the error by a factor rho, so after the check on rho^2 the error rho^3 is below rounding.
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
        """Return L + xi (equation 3, whose projection does not change a horizontal xi)."""
        return at + tangent

    def gradient(self, at: Tensor, euclidean: Tensor) -> Tensor:
        if self.descends == "euclidean" or self.metric == "frobenius":
            return euclidean
        gram = at.T @ at
        return euclidean @ gram if self.metric == "scaled" else _through(gram, euclidean.T).T


def _through(gram: Tensor, vector: Tensor) -> Tensor:
    """Return G^-1 v, with a small ridge on G in case it has lost rank."""
    lift = torch.finfo(gram.dtype).eps * gram.trace()
    solution: Tensor = torch.linalg.solve(
        gram + lift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), vector
    )
    return solution
