"""The Stiefel manifold: matrices with orthonormal columns (001, section 5.2)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ml.manifolds.base import Manifold

MAX_MEAN_SQUARE = 1e3
"""If the columns of U + xi have a larger mean squared length, its Gram matrix is too inaccurate in single precision."""


@dataclass(frozen=True)
class StiefelManifold(Manifold):
    """St(p, n) = {U : U^T U = I} with the Frobenius inner product.

    retraction: "qr" is equation 6; "cayley" is the transform of Remark 2, which is more accurate but slower
    """

    retraction: Literal["qr", "cayley"] = "qr"

    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        """Return v - U sym(U^T v) (equation 5)."""
        inside = at.T @ vector
        return torch.addmm(vector, at, inside + inside.T, alpha=-0.5)

    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """Return a matrix whose columns are orthonormal to rounding, whatever the number of steps before."""
        return _near(at + tangent if self.retraction == "qr" else _cayley(at, tangent))


def orthonormal(matrix: Tensor) -> Tensor:
    """Return qf(A) of an (n, p) matrix of full rank: the (n, p) factor Q of A = Q R with diag R > 0."""
    q, r = torch.linalg.qr(matrix)
    upright: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
    return upright


def _near(matrix: Tensor) -> Tensor:
    """Compute `orthonormal` for A = U + xi by Cholesky, A^T A = R^T R, which is faster.

    This is accurate if xi has moderate length, because A^T A = I + xi^T xi. Otherwise it calls `orthonormal`.
    """
    gram = matrix.T @ matrix
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed or float(gram.trace()) > MAX_MEAN_SQUARE * len(gram):
        return orthonormal(matrix)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
    return matrix @ inverse.T


def _cayley(at: Tensor, tangent: Tensor) -> Tensor:
    """Return (I - W/2)^-1 (I + W/2) U with skew W such that W U = xi, from 2p equations (Wen and Yin 2013)."""
    half = torch.addmm(tangent, at, at.T @ tangent, alpha=-0.5)
    left, right = torch.cat([half, at], 1), torch.cat([at, -half], 1)  # W = left right^T
    system = torch.eye(left.shape[1], dtype=at.dtype, device=at.device) - 0.5 * right.T @ left
    return torch.addmm(at, left, torch.linalg.solve(system, right.T @ at))
