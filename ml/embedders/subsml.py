"""Sub-SML: a similarity less a distance, learned in the intra-personal subspace (000, equations 21 to 23)."""

from dataclasses import dataclass

import numpy as np
import torch

from ml.embedders.base import Embedder, Progress, TrainingSet
from ml.errors import TooFewPairs
from ml.metric import Metric
from ml.metric_learning.holdout import require_pairs
from ml.metric_learning.linear_embedding import norms, project
from ml.metric_learning.pairs import pool
from ml.metric_learning.similarity_program import Program
from ml.metric_learning.tensors import device_of, tensor
from ml.metric_learning.whitening import Kind, whitened
from ml.types import Rows


@dataclass
class Subsml(Embedder):
    """f = x^T G y - (x - y)^T M (x - y), x whitened and of unit length.

    The distance is -f, exactly: z = [A x; (1 - q) / sqrt 2; (1 + q) / sqrt 2] with A^T A = G + 2 M and q = x^T M x is
    compared by the inner product in which the last number counts negative, x^T (G + 2 M) y - q(x) - q(y).
    Learns the first task alone.

    inner: r, principal components that are kept, fewer where the faces or the numbers are fewer
    whitening: "within": by how a person's own faces vary, the intra-personal subspace; "all": by how all do; "none"
    prior: faces with a labelled fellow that weigh as much as the belief that a person varies as all faces do
    pairs: budget of derived pairs, of which the share `apart` is not the same; explicit labels come on top
    needed: pairs of either kind
    pull: of G and M towards the identity, beside a hinge averaged over the pairs
    steps, tolerance: it ends at so many steps, or once it is known to lie no further above the least, as a share of it
    """

    inner: int = 300
    whitening: Kind = "within"
    prior: float = 300.0
    pairs: int = 20_000
    apart: float = 0.5
    needed: int = 10
    pull: float = 1e-3
    steps: int = 500
    tolerance: float = 1e-3
    device: str = "auto"

    @property
    def width(self) -> int | None:
        return self.learned["axes"].shape[1] if self.learned else None

    @property
    def metric(self) -> Metric:
        return Metric("ip", negative=1)

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if not data.tasks:
            raise TooFewPairs("tasks with labelled pairs", 1, 0)
        task = data.tasks[0]
        require_pairs(task, self.needed)
        self.tasks = (task.task,)
        rows = tensor(data.rows, device_of(self.device))
        mine = pool(task, self.pairs, np.random.default_rng((self.seed, 2)), rows.device, apart=self.apart)
        axes, offset = whitened(rows, self.inner, mine, self.seed, self.whitening, self.prior)
        x = torch.addmm(-offset, rows, axes.T)
        x /= x.norm(dim=1, keepdim=True).clamp_min(1e-12)
        first, second = mine.pairs.T
        found = Program(x[first], x[second], mine.sign, mine.weight / mine.weight.sum(), self.pull).solved(
            self.steps, self.tolerance, progress
        )
        strength, turn = torch.linalg.eigh(found.alike + 2 * found.apart)
        self.learned = {
            "axes": axes.cpu().numpy(),
            "offset": offset.cpu().numpy(),
            "projection": (turn * strength.clamp_min(0).sqrt()).T.contiguous().cpu().numpy(),
            "apart": found.apart.cpu().numpy(),
        }
        self.notes = {"steps": found.steps, "loss": found.loss, "gap": found.gap}

    def _embed(self, rows: Rows, task: str) -> Rows:
        x = project(rows, self.learned["axes"], self.learned["offset"])
        x /= norms(x)[:, None]
        q = ((x @ self.learned["apart"]) * x).sum(1, keepdims=True)
        half = np.float32(0.5**0.5)
        return np.concatenate([x @ self.learned["projection"].T, (1 - q) * half, (1 + q) * half], axis=1)
