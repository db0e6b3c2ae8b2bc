"""A shared projection, transformed by a small matrix for each task: mtLMCA (Yang, Huang, Liu 2013; 002, Table 6)."""

from dataclasses import dataclass

from torch import Tensor

from ml.metric_learning.hinge.projections import Projections, Rates


@dataclass(eq=False)
class TurnedProjections(Projections):
    """L_t = R_t^T L_0, so d_t^2 = |R_t^T L_0 u|^2. common: (d, D) L_0; own: R_1 ... R_T, each (d, d).

    Half the gradient of the hinge, y w for a violating pair: by R_t it is L_0 u z^T, by L_0 it is R_t z u^T, z = L_t u.
    """

    def stack(self, task: int) -> Tensor:
        """L_t: (d, D)."""
        assert self.common is not None, "R_t turns L_0"
        return self.own[task].T @ self.common

    def _descend(self, task: int, pull: Tensor, u: Tensor, rates: Rates) -> None:
        assert self.common is not None, "R_t turns L_0"
        back, shared = pull @ self.own[task].T, u @ self.common.T
        self.own[task].addmm_(shared.T, pull, alpha=-rates.own)
        self.common.addmm_(back.T, u, alpha=-rates.common)
