"""What SML and the two CoSiM share: the options, whitening, who is held out, what is kept."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ml.embedders.base import Embedder, Progress, TaskData, TrainingSet
from ml.errors import CannotGoOn, TooFewPairs
from ml.metric import INNER_PRODUCT, Metric
from ml.metric_learning.cosim.branches import Branches
from ml.metric_learning.cosim.learner import Course, Descent, Outcome
from ml.metric_learning.holdout import counted, only, require_pairs
from ml.metric_learning.linear_embedding import norms, project
from ml.metric_learning.pairs import Pool, pool
from ml.metric_learning.subspace import with_fellows
from ml.metric_learning.tensors import device_of, tensor
from ml.metric_learning.whitening import Kind, whitened
from ml.types import Ids, Rows

JUDGES = 4000
"""Derived pairs of the people held out."""


@dataclass
class Collaborative(Embedder):
    """z = [W_1 x_1; W_2 x_2; ...] of n descriptors, each whitened; pairs are scored by inner products of z.

    Learns the first task alone. Nothing but explicit pairs is enough.

    inner: r, whitened principal components of each descriptor (fewer where it or the faces are fewer); W_i is r x r
    steps: minibatches at most, of `batch` pairs each
    held_out: share of the people who are kept out, by whom the best of the steps is found, told in notes["steps"]
    (people too few: all steps are taken); fit again with `steps` set to it and held_out=0
    pairs: budget of derived pairs, of which the share `apart` is not the same; explicit labels come on top
    needed: pairs of either kind
    whitening: "within": by how a person's own faces vary (the intra-personal subspace of Sub-SML); "all": by how all
    do, as printed; "none": for a descriptor that is good already, whose cosine is then where W_i = I starts
    prior: n faces with a fellow weigh n : prior against the belief that a person's own vary as all faces do
    rate, decay: Adam's step at minibatch t is rate / (1 + decay t), as in Keras
    dropout: share of the numbers of each image that is dropped at every step
    unit: divide each whitened descriptor by its norm
    stay: pull towards the model that is gone on from, by prior / n of n faces with a labelled fellow; none anew
    reach: the logit's room at the start: each pair's inner products, W_i = I, sum to at most this, and b = -reach, so
    that a face and itself are at even odds; 0: as printed, which for unit=false is a logit of SD 17, and b near 0
    """

    inner: int = 300
    steps: int = 1500
    batch: int = 128
    held_out: float = 0.15
    pairs: int = 100_000
    apart: float = 0.5
    needed: int = 10
    whitening: Kind = "within"
    prior: float = 300.0
    rate: float = 0.0003
    decay: float = 0.001
    dropout: float = 0.7
    unit: bool = True
    reach: float = 4.0
    stay: float = 1e-3
    device: str = "auto"
    together: ClassVar[bool] = True

    @abstractmethod
    def _blocks(self, data: TrainingSet) -> tuple[int, ...]:
        """The widths of what counts as one descriptor each."""

    @property
    def width(self) -> int | None:
        return sum(axes.shape[1] for axes in self._learned("axes")) if self.learned else None

    @property
    def metric(self) -> Metric:
        return INNER_PRODUCT

    def _learned(self, name: str) -> list[Rows]:
        """One of each descriptor."""
        n = len(self.learned) // 3  # axes, offset and weights of each; bias and shares of all
        return [self.learned[f"{name}_{i}"] for i in range(n)]

    def _embed(self, rows: Rows, task: str) -> Rows:
        parts = zip(self._learned("axes"), self._learned("offset"), self._learned("weights"), strict=True)
        z, at = [], 0
        for axes, offset, weights in parts:
            x = project(rows[:, at : at + axes.shape[1]], axes, offset)
            z.append((x / norms(x)[:, None] if self.unit else x) @ weights.T)
            at += axes.shape[1]
        return np.concatenate(z, axis=1)

    def go_on_from(self, before: Embedder) -> Self:
        """From a model of the same method: whitening and shares stay as they are, W_i and b are learned further."""
        found = self._fitted(before, type(self))
        self.before, self.inner, self.unit, self.reach = found, found.inner, found.unit, found.reach
        self.whitening = found.whitening
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if not data.tasks:
            raise TooFewPairs("tasks with labelled pairs", 1, 0)
        task, device = data.tasks[0], device_of(self.device)
        require_pairs(task, self.needed)
        people = in_turn(task, self.seed)
        kept, held = self._apart(task, people[: round(self.held_out * len(people))])
        mine, judges = self._pools(kept, held, device)
        x = self._inputs(data, mine)
        if self.before is None:
            shares, progress = self._shares(x, kept, progress)
        else:
            shares = tensor(self.before.learned["shares"], device)[:, None]
        pull = self.stay * self.prior / max(1, with_fellows(kept)) if self.before else 0.0
        model, found = self._learn(x, [mine], [judges] if judges else None, shares, progress, pull)
        for i, weights in enumerate(model.weights[:, 0]):
            r = len(self.learned[f"axes_{i}"])
            self.learned[f"weights_{i}"] = (weights[:r, :r] * self._room(len(x), r) ** 0.5).cpu().numpy()
        self.learned |= {"bias": model.bias[:, 0].cpu().numpy(), "shares": shares[:, 0].cpu().numpy()}
        self.tasks = (task.task,)
        self.notes = {"steps": found.steps[0], "loss": found.loss[0], "held_out": found.held_out[0]}

    def _apart(self, task: TaskData, people: Ids) -> tuple[TaskData, TaskData | None]:
        """Who is learned from, and these people, who judge: all and None, where either would be too few."""
        held = np.isin(task.people, people)
        kept, judges = only(task, ~held), only(task, held)
        return (kept, judges) if min(*counted(kept), *counted(judges)) >= self.needed else (task, None)

    def _pools(self, kept: TaskData, held: TaskData | None, device: torch.device) -> tuple[Pool, Pool | None]:
        """The pairs of those who are learned from, and of those who judge."""
        first, second = (np.random.default_rng((self.seed, number)) for number in (2, 4))
        mine = pool(kept, self.pairs, first, device, apart=self.apart)
        return mine, None if held is None else pool(held, min(self.pairs, JUDGES), second, device, apart=self.apart)

    def _inputs(self, data: TrainingSet, pairs: Pool) -> Tensor:
        """(n, 1, N, r), what each W_i acts on; narrower ones are filled up with zeros. Learns axes and offsets."""
        self.learned, found = {}, []
        parts = np.split(data.rows, np.cumsum(self._blocks(data))[:-1], axis=1)
        for i, part in enumerate(parts):
            rows = tensor(np.ascontiguousarray(part), pairs.sign.device)
            axes, offset = self._whitened(rows, i, pairs)
            self.learned |= {f"axes_{i}": axes.cpu().numpy(), f"offset_{i}": offset.cpu().numpy()}
            x = torch.addmm(-offset, rows, axes.T)
            x /= x.norm(dim=1, keepdim=True).clamp_min(1e-12) if self.unit else 1.0
            found.append(x * self._room(len(parts), x.shape[1]) ** 0.5)
        width = max(x.shape[1] for x in found)
        return torch.stack([pad(x, (0, width - x.shape[1])) for x in found])[:, None]

    def _whitened(self, rows: Tensor, i: int, pairs: Pool) -> tuple[Tensor, Tensor]:
        """Axes and offset of descriptor i: those that it goes on with, if any. Raises CannotGoOn."""
        if self.before is None:
            return whitened(rows, self.inner, pairs, self.seed, self.whitening, self.prior)
        axes, offset = (self.before.learned.get(f"{name}_{i}") for name in ("axes", "offset"))
        if axes is None or offset is None or axes.shape[1] != rows.shape[1]:
            raise CannotGoOn(f"it was learned from other descriptors: no. {i + 1} has {rows.shape[1]} numbers here")
        return tensor(axes, rows.device), tensor(offset, rows.device)

    def _room(self, n: int, r: int) -> float:
        """What the inner products of a descriptor are multiplied by at the start."""
        if not self.reach:
            return 1.0
        return self.reach / (n if self.together else 1) / (1 if self.unit else r)

    def _learn(
        self,
        x: Tensor,
        pools: list[Pool],
        held: list[Pool] | None,
        shares: Tensor,
        progress: Progress,
        stay: float = 0.0,
    ) -> tuple[Branches, Outcome]:
        """One fit for each of the columns of shares (m, F)."""
        model = self._start(x, shares)
        course = Course(self.steps, self.batch, self.rate, self.decay, self.dropout, stay)
        return model, Descent(x, pools, held, shares, course, self.seed).run(model, progress)

    def _start(self, x: Tensor, shares: Tensor) -> Branches:
        if self.before is None:
            noise = torch.Generator().manual_seed(self.seed)
            bias = 0.01 * torch.randn(len(shares), 1, generator=noise).to(shares) - self.reach
            return Branches.start(len(x), x.shape[3], bias.expand_as(shares), together=self.together)
        weights = x.new_zeros(len(x), 1, x.shape[3], x.shape[3])
        for i, place in enumerate(weights[:, 0]):
            found = tensor(self.before.learned[f"weights_{i}"], x.device)
            place[: len(found), : len(found)] = found / self._room(len(x), len(found)) ** 0.5
        return Branches(weights, tensor(self.before.learned["bias"].copy(), x.device)[:, None], self.together)

    def _shares(self, x: Tensor, task: TaskData, progress: Progress) -> tuple[Tensor, Progress]:
        """(m, 1): a_i, which sum to 1; and the progress that is left to be told of."""
        m = 1 if self.together else len(x)
        return x.new_full((m, 1), 1 / m), progress


def in_turn(task: TaskData, seed: int) -> Ids:
    """Everybody known, in a random order; the first of them are held out."""
    return np.random.default_rng((seed, 1)).permutation(np.unique(task.people[task.people >= 0]))
