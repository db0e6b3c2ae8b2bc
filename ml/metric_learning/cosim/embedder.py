"""The base of SML and the two forms of CoSiM: options, whitening, held-out people, and learned arrays."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ml.distances import INNER_PRODUCT, Distance
from ml.embedders.base import Embedder, Progress, TaskData, TrainingSet, require_fitted
from ml.errors import CannotGoOn
from ml.metric_learning.cosim.branches import Branches
from ml.metric_learning.cosim.learner import BranchLearner, DecaySchedule, descend
from ml.metric_learning.fit_data import FitOptions
from ml.metric_learning.holdout import (
    count_pairs,
    require_pairs,
    require_task,
    scale_proximal_weight,
    select_faces,
    shuffle_people,
)
from ml.metric_learning.linear_embedding import norms, project
from ml.metric_learning.pairs import PairSet, draw_pair_set
from ml.metric_learning.tensors import as_tensor, select_device
from ml.metric_learning.training_loop import TrainingOutcome
from ml.metric_learning.whitening import Whitening, fit_whitening
from ml.options import option, option_group
from ml.types import Ids, Rows

HELD_OUT_PAIRS = 4000
"""Number of derived pairs of held-out people."""


@dataclass
class SimilarityEmbedder(Embedder):
    """z = [W_1 x_1; W_2 x_2; ...] of n descriptors, each whitened; pairs are scored by inner products of z.

    Learns the first task alone. Labelled pairs alone are enough. W_i is r x r.
    """

    inner: int = option(
        300, "r, whitened principal components per descriptor; fewer if there are fewer numbers or faces", low=1,
        unit="components",
    )  # fmt: skip
    fitting: FitOptions = option_group(FitOptions, steps=1500, proximal_weight=1e-3)
    batch: int = option(128, "pairs in a minibatch", low=1, unit="pairs")
    pairs: int = option(100_000, "number of pairs derived from people; labelled pairs are added", low=1, unit="pairs")
    negative_share: float = option(0.5, "share of negatives among the drawn pairs", low=0, high=1, formerly="apart")
    whitening: Whitening = option(
        "within",
        "within: by how the faces of one person vary (the intra-personal subspace of Sub-SML); all: by how all faces "
        "vary, as in the paper; none: for accurate descriptors; the fit then starts from their cosine",
    )
    rate: float = option(0.0003, "Adam's step at minibatch t is rate / (1 + decay t), as in Keras", low=0)
    decay: float = option(0.001, "how fast the rate falls", low=0)
    dropout: float = option(0.7, "share of each image's numbers that is dropped in every step", low=0, high=1)
    unit: bool = option(True, "divide each whitened descriptor by its norm")
    reach: float = option(
        4.0,
        "range of the logit at the start: the inner products of a pair sum to at most this, and b = -reach, so that "
        "P(same) of a face and itself is 1/2; 0: as in the paper: b near 0, and without unit length a logit of SD 17",
        low=0,
    )
    summed: ClassVar[bool] = True
    """Whether the inner products are summed to one logit."""

    @abstractmethod
    def _get_blocks(self, data: TrainingSet) -> tuple[int, ...]:
        """Return the widths of the parts of a row that have a W_i each."""

    @property
    def width(self) -> int | None:
        return sum(axes.shape[1] for axes in self._get_learned("axes")) if self.learned else None

    @property
    def metric(self) -> Distance:
        return INNER_PRODUCT

    def _get_learned(self, name: str) -> list[Rows]:
        """Return the arrays of this name, one for each descriptor."""
        n = len(self.learned) // 3  # axes, offset and weights of each; bias and shares for all
        return [self.learned[f"{name}_{i}"] for i in range(n)]

    def _embed(self, rows: Rows, task: str) -> Rows:
        parts = zip(self._get_learned("axes"), self._get_learned("offset"), self._get_learned("weights"), strict=True)
        z, start = [], 0
        for axes, offset, weights in parts:
            x = project(rows[:, start : start + axes.shape[1]], axes, offset)
            z.append((x / norms(x)[:, None] if self.unit else x) @ weights.T)
            start += axes.shape[1]
        return np.concatenate(z, axis=1)

    def start_from(self, model: Embedder) -> Self:
        """Start from a model of the same method: whitening and shares are kept, W_i and b are trained further."""
        start = require_fitted(self, model, type(self))
        self.start_model, self.inner, self.unit, self.reach = start, start.inner, start.unit, start.reach
        self.whitening = start.whitening
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        task, device = require_task(data), select_device(self.fitting.device)
        require_pairs(task, self.fitting.min_pairs)
        people = shuffle_people(task, self.seed)
        kept, held_out = self._hold_out(task, people[: round(self.fitting.held_out * len(people))])
        pairs, held_out_pairs = self._draw_pairs(kept, held_out, device)
        x = self._whiten(data, pairs)
        if self.start_model is None:
            shares, progress = self._choose_shares(x, kept, progress)
            proximal = 0.0
        else:
            shares = as_tensor(self.start_model.learned["shares"], device)[:, None]
            proximal = scale_proximal_weight(self.fitting.proximal_weight, self.fitting.prior, kept)
        judges = [held_out_pairs] if held_out_pairs else None
        model, outcome = self._learn(x, [pairs], judges, shares, progress, proximal)
        for i, weights in enumerate(model.weights[:, 0]):
            r = len(self.learned[f"axes_{i}"])
            self.learned[f"weights_{i}"] = (weights[:r, :r] * self._initial_scale(len(x), r) ** 0.5).cpu().numpy()
        self.learned |= {"bias": model.bias[:, 0].cpu().numpy(), "shares": shares[:, 0].cpu().numpy()}
        self.tasks = (task.task,)
        self.notes = outcome.notes | {"loss": outcome.final_loss[0]}

    def _hold_out(self, task: TaskData, people: Ids) -> tuple[TaskData, TaskData | None]:
        """Return the task without these people, and their own; the whole task and None if either has too few pairs."""
        chosen = np.isin(task.people, people)
        kept, held_out = select_faces(task, ~chosen), select_faces(task, chosen)
        enough = min(*count_pairs(kept), *count_pairs(held_out)) >= self.fitting.min_pairs
        return (kept, held_out) if enough else (task, None)

    def _draw_pairs(
        self, kept: TaskData, held_out: TaskData | None, device: torch.device
    ) -> tuple[PairSet, PairSet | None]:
        """Draw the training pairs, and those of held-out people."""
        first, second = (np.random.default_rng((self.seed, number)) for number in (2, 4))
        pairs = draw_pair_set(kept, self.pairs, first, device, negative_share=self.negative_share)
        if held_out is None:
            return pairs, None
        budget = min(self.pairs, HELD_OUT_PAIRS)
        return pairs, draw_pair_set(held_out, budget, second, device, negative_share=self.negative_share)

    def _whiten(self, data: TrainingSet, pairs: PairSet) -> Tensor:
        """Return the inputs of the W_i, (n, 1, N, r), padded with zeros; set the axes and offsets."""
        self.learned, inputs = {}, []
        parts = np.split(data.rows, np.cumsum(self._get_blocks(data))[:-1], axis=1)
        for i, part in enumerate(parts):
            rows = as_tensor(np.ascontiguousarray(part), pairs.sign.device)
            axes, offset = self._get_axes(rows, i, pairs)
            self.learned |= {f"axes_{i}": axes.cpu().numpy(), f"offset_{i}": offset.cpu().numpy()}
            x = torch.addmm(-offset, rows, axes.T)
            x /= x.norm(dim=1, keepdim=True).clamp_min(1e-12) if self.unit else 1.0
            inputs.append(x * self._initial_scale(len(parts), x.shape[1]) ** 0.5)
        width = max(x.shape[1] for x in inputs)
        return torch.stack([pad(x, (0, width - x.shape[1])) for x in inputs])[:, None]

    def _get_axes(self, rows: Tensor, i: int, pairs: PairSet) -> tuple[Tensor, Tensor]:
        """Return axes and offset of descriptor i, from the start model if there is one. Raises CannotGoOn."""
        if self.start_model is None:
            return fit_whitening(rows, self.inner, pairs, self.seed, self.whitening, self.fitting.prior)
        axes, offset = (self.start_model.learned.get(f"{name}_{i}") for name in ("axes", "offset"))
        if axes is None or offset is None or axes.shape[1] != rows.shape[1]:
            raise CannotGoOn(
                f"the start model was trained on other descriptors: descriptor {i + 1} has {rows.shape[1]} numbers here"
            )
        return as_tensor(axes, rows.device), as_tensor(offset, rows.device)

    def _initial_scale(self, n: int, r: int) -> float:
        """Return the initial factor of a descriptor's inner products."""
        if not self.reach:
            return 1.0
        return self.reach / (n if self.summed else 1) / (1 if self.unit else r)

    def _learn(
        self,
        x: Tensor,
        pair_sets: list[PairSet],
        held_out: list[PairSet] | None,
        shares: Tensor,
        progress: Progress,
        proximal_weight: float = 0.0,
    ) -> tuple[Branches, TrainingOutcome]:
        """Run one fit for each column of shares (m, F)."""
        model = self._make_start(x, shares)
        schedule = DecaySchedule(self.fitting.steps, self.batch, self.rate, self.decay, self.dropout, proximal_weight)
        learner = BranchLearner(model, x, pair_sets, held_out, shares, schedule, self.seed)
        return model, descend(learner, progress)

    def _make_start(self, x: Tensor, shares: Tensor) -> Branches:
        if self.start_model is None:
            noise = torch.Generator().manual_seed(self.seed)
            bias = 0.01 * torch.randn(len(shares), 1, generator=noise).to(shares) - self.reach
            return Branches.start(len(x), x.shape[3], bias.expand_as(shares), summed=self.summed)
        weights = x.new_zeros(len(x), 1, x.shape[3], x.shape[3])
        for i, padded in enumerate(weights[:, 0]):
            start = as_tensor(self.start_model.learned[f"weights_{i}"], x.device)
            padded[: len(start), : len(start)] = start / self._initial_scale(len(x), len(start)) ** 0.5
        bias = as_tensor(self.start_model.learned["bias"].copy(), x.device)[:, None]
        return Branches(weights, bias, self.summed)

    def _choose_shares(self, x: Tensor, task: TaskData, progress: Progress) -> tuple[Tensor, Progress]:
        """Return the shares a_i, (m, 1), which sum to 1, and the progress for the rest of the fit."""
        m = 1 if self.summed else len(x)
        return x.new_full((m, 1), 1 / m), progress
