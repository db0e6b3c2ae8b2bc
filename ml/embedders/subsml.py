"""Sub-SML: a similarity minus a distance, learned in the intra-personal subspace.

Source: 000, equations 21 to 23.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ml.distances import Distance
from ml.distances.signed import Signed
from ml.embedders.base import Embedder, Progress, TrainingSet
from ml.metric_learning.holdout import require_pairs, require_task
from ml.metric_learning.linear_embedding import norms, project
from ml.metric_learning.pairs import draw_pair_set
from ml.metric_learning.similarity_program import SimilarityProgram
from ml.metric_learning.tensors import as_arrays, as_tensor, select_device
from ml.metric_learning.whitening import Whitening, fit_whitening
from ml.options import option
from ml.types import Rows


@dataclass
class Subsml(Embedder):
    """f = x^T G y - (x - y)^T M (x - y), x whitened and of unit length.

    The distance is -f, exactly: z = [A x; (1 - q) / sqrt 2; (1 + q) / sqrt 2] with A^T A = G + 2 M and q = x^T M x is
    compared by the inner product in which the last number counts negative, x^T (G + 2 M) y - q(x) - q(y).
    Learns the first task alone.
    """

    inner: int = option(
        300, "number of principal components; fewer if there are fewer faces or numbers", low=1,
        unit="components",
    )  # fmt: skip
    whitening: Whitening = option(
        "within",
        "within: by how the faces of one person vary (the intra-personal subspace); all: by how all faces vary; none",
    )
    prior: float = option(
        300.0,
        "number of labelled faces that weigh as much as the assumption that a person varies as all faces do",
        low=0, unit="faces",
    )  # fmt: skip
    pairs: int = option(20_000, "number of pairs derived from people; labelled pairs are added", low=1, unit="pairs")
    negative_share: float = option(0.5, "share of negatives among the drawn pairs", low=0, high=1, formerly="apart")
    min_pairs: int = option(
        10, "smallest number of positive pairs, and of negative pairs, that a fit accepts",
        low=0, unit="pairs", formerly="needed",
    )  # fmt: skip
    pull: float = option(
        1e-3, "weight of the pull of G and M towards the identity; the hinge is averaged over the pairs", low=0
    )
    steps: int = option(500, "largest number of steps", low=1, unit="steps")
    tolerance: float = option(1e-3, "the fit ends when the loss exceeds its minimum by at most this share", low=0)
    device: str = option("auto", "auto, cpu or cuda", server_only=True)

    @property
    def width(self) -> int | None:
        return self.learned["axes"].shape[1] if self.learned else None

    @property
    def metric(self) -> Distance:
        return Signed(1)

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        task = require_task(data)
        require_pairs(task, self.min_pairs)
        self.tasks = (task.task,)
        rows = as_tensor(data.rows, select_device(self.device))
        rng = np.random.default_rng((self.seed, 2))
        pairs = draw_pair_set(task, self.pairs, rng, rows.device, negative_share=self.negative_share)
        axes, offset = fit_whitening(rows, self.inner, pairs, self.seed, self.whitening, self.prior)
        x = torch.addmm(-offset, rows, axes.T)
        x /= x.norm(dim=1, keepdim=True).clamp_min(1e-12)
        first, second = pairs.pairs.T
        program = SimilarityProgram(x[first], x[second], pairs.sign, pairs.weight / pairs.weight.sum(), self.pull)
        solution = program.solve(self.steps, self.tolerance, progress)
        strength, turn = torch.linalg.eigh(solution.similarity + 2 * solution.distance)
        projection = (turn * strength.clamp_min(0).sqrt()).T.contiguous()
        self.learned = as_arrays({"axes": axes, "offset": offset, "projection": projection, "apart": solution.distance})
        self.notes = {"steps": solution.steps, "loss": solution.loss, "gap": solution.gap}

    def _embed(self, rows: Rows, task: str) -> Rows:
        x = project(rows, self.learned["axes"], self.learned["offset"])
        x /= norms(x)[:, None]
        q = ((x @ self.learned["apart"]) * x).sum(1, keepdims=True)
        half = np.float32(0.5**0.5)
        return np.concatenate([x @ self.learned["projection"].T, (1 - q) * half, (1 + q) * half], axis=1)
