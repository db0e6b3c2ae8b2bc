"""mtLMCA: a projection shared by all tasks, followed by a d x d matrix for each task.

Source: Yang et al. 2013; 002, Table 6.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ml.errors import NotFitted
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.hinge.turned_projections import TurnedProjections
from ml.metric_learning.pairs import PairSet, scale_to_distance
from ml.options import option


@dataclass
class Mtlmca(HingeEmbedder):
    """z = R_t^T L_0 x for task t, which minimises sum_t sum [1 - y (b_t - |z_i - z_j|^2)]_+.

    L_0 is d x D and learns from every task; R_t is d x d, starts at I and learns from task t alone. d numbers are
    stored per face and task. The first task is the main one.
    """

    auxiliary_pairs: int = option(100_000, "pairs drawn for each task but the first", low=1, unit="pairs")
    start: Literal["wpca", "eye"] = option(
        "wpca",
        "where L_0 starts: wpca: from the first task's whitened components; eye: from the first d numbers of the "
        "descriptor, as in the paper, which ignores the others until the fit gives them weight",
    )
    turning: float = option(
        1.0, "rate of R_t over that of L_0, both relative to their inputs; with 0, R_t stays I, which is utML",
        low=0,
    )  # fmt: skip
    learns_all_tasks: ClassVar[bool] = True

    @property
    def _further_pairs(self) -> int:
        return self.auxiliary_pairs

    def _make_start(self, data: FitData, pair_sets: list[PairSet]) -> Projections:
        axes = self._fit_components(self._sample(data, data.task), self.dim)
        start = axes if self.start == "wpca" else torch.eye(*axes.shape, dtype=axes.dtype, device=axes.device)
        common = scale_to_distance(start, data.coordinates, pair_sets[0], self.distance)
        turns = [torch.eye(self.dim, dtype=common.dtype, device=common.device) for _ in data.tasks]
        return TurnedProjections(common, turns, [self.distance] * len(data.tasks))

    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        """Restore L_0 and each R_t, (d, d). They are determined up to a d x d matrix, chosen such that R_1 = I."""
        inverse = torch.linalg.pinv(stacks[0].double())
        turns = [(stack.double() @ inverse).T.to(stack) for stack in stacks[1:]]
        eye = torch.eye(self.dim, dtype=stacks[0].dtype, device=stacks[0].device)
        return TurnedProjections(stacks[0], [eye, *turns], bias)

    def split_projections(self) -> dict[str, ProjectionParts]:
        """Return L_0, and L_t = R_t^T L_0, which has the same row space unless R_t is singular. Raises NotFitted."""
        if not self.learned:
            raise NotFitted(type(self).__name__)
        projections = self._restore_learned()
        assert projections.common is not None, "R_t turns L_0"
        common, stacks = projections.common.numpy(), [projections.stack(t).numpy() for t in range(len(self.tasks))]
        return {t: ProjectionParts(common, own, is_sum=False) for t, own in zip(self.tasks, stacks, strict=True)}

    def _make_rates(self, eta: float) -> Rates:
        # R_t multiplies z, whose median |z_i - z_j|^2 is `distance`, as L_0 does x, in whose units eta is
        return replace(super()._make_rates(eta), common=eta, own=self.turning * self.rate / self.distance)
