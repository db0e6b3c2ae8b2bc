"""utML: one projection for the pairs of all tasks together.

Source: a baseline of 002, section 4.2.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.options import option
from ml.types import Rows


@dataclass
class Utml(HingeEmbedder):
    """z = L x for every task t, which minimises sum_t sum [1 - y (b_t - |z_i - z_j|^2)]_+.

    This is CP-mtML without any L_t: tasks take turns to update one projection, and each has its own bias, because
    distances differ between tasks. d numbers are stored for a face, the same for all tasks. The first task is the main
    one: the start is its WPCA, and its held-out people determine the number of steps.
    """

    auxiliary_pairs: int = option(100_000, "pairs drawn for each task but the first", low=1, unit="pairs")
    learns_all_tasks: ClassVar[bool] = True

    @property
    def _further_pairs(self) -> int:
        return self.auxiliary_pairs

    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(stacks[0], [stack[:0] for stack in stacks], bias)

    def _learn(self, data: FitData, steps: int, progress: Progress) -> None:
        super()._learn(data, steps, progress)
        for name in ("projections", "offsets"):
            self.learned[name] = self.learned[name][:1]

    def _make_rates(self, eta: float) -> Rates:
        return replace(super()._make_rates(eta), common=eta)

    def _get_map(self, task: str) -> tuple[Rows, Rows]:
        return self.learned["projections"][0], self.learned["offsets"][0]
