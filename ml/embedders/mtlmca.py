"""mtLMCA: a projection shared by all tasks, turned by a d x d matrix for each (Yang et al. 2013; 002, Table 6)."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ml.metric_learning.hinge.embedder import Lesson
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.hinge.tasks import ManyTasks
from ml.metric_learning.hinge.turned import Turned
from ml.metric_learning.pairs import Pool, scaled


@dataclass
class Mtlmca(ManyTasks):
    """z = R_t^T L_0 x for task t, with sum_t sum [1 - y (b_t - |z_i - z_j|^2)]_+ as small as it gets.

    L_0 is d x D and learns from every task; R_t is d x d, starts at I and learns from task t alone. d numbers are
    stored for a face, other ones for each task. The first task is the main one.

    start: of L_0: "wpca", the first task's whitened components, or "eye", the first d numbers of the descriptor as
    printed, which throws the others away until pairs bring them in
    turning: the step of R_t over that of L_0, both relative to what they multiply; 0 leaves R_t at I, which is utML
    """

    start: Literal["wpca", "eye"] = "wpca"
    turning: float = 1.0

    def _anew(self, lesson: Lesson, pools: list[Pool]) -> Projections:
        rows, tasks = lesson.rows, lesson.tasks
        common = scaled(self._start(self._some(rows, tasks[0])), rows, pools[0], self.distance)
        turns = [torch.eye(self.dim, dtype=common.dtype, device=common.device) for _ in tasks]
        return Turned(common, turns, [self.distance] * len(tasks))

    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        """L_0 is known up to a d x d matrix, which every R_t takes back: it is the one for which R_1 = I."""
        inverse = torch.linalg.pinv(stacks[0].double())
        turns = [(stack.double() @ inverse).T.to(stack) for stack in stacks[1:]]
        eye = torch.eye(self.dim, dtype=stacks[0].dtype, device=stacks[0].device)
        return Turned(stacks[0], [eye, *turns], bias)

    def _start(self, rows: Tensor) -> Tensor:
        """L_0 before it is scaled."""
        axes = self._components(rows, self.dim)
        return axes if self.start == "wpca" else torch.eye(*axes.shape, dtype=axes.dtype, device=axes.device)

    def _rates(self, eta: float) -> Rates:
        # R_t multiplies z, whose median |z_i - z_j|^2 is `distance`, as L_0 does x, in whose units eta is
        return replace(super()._rates(eta), common=eta, own=self.turning * self.rate / self.distance)
