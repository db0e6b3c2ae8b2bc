"""What stML and CP-mtML share: the options, early stopping, the start, what is kept."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet
from ml.errors import CannotGoOn, NotFinite, TooFewPairs, WrongShape
from ml.metric_learning.hinge.learner import Rounds
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.holdout import counted, only, require_pairs, watch
from ml.metric_learning.linear_embedding import project
from ml.metric_learning.pairs import Pool, pool, typical
from ml.metric_learning.subspace import with_fellows
from ml.metric_learning.tensors import device_of, principal, tensor
from ml.types import Rows

SLOWEST = 1e-3
"""A descent that leaves all bounds begins again with steps half as long, down to this share of the rate."""
SAMPLE = 4000
"""Faces from which the components of the start and the middle of the embedding are computed."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """What one descent learns from: the rows, the tasks, who judges it (None: nobody), how long, whom it tells."""

    rows: Tensor
    tasks: Sequence[TaskData]
    held: TaskData | None
    steps: int
    progress: Progress


@dataclass
class Hinged(Embedder):
    """Options, all in units that suit any descriptor.

    dim: d; steps: batches at most, of `batch` pairs each: steps x batch pair updates over all tasks
    held_out: share of the first task's people who are kept out to find the best number of steps, told in
    notes["steps"] (0, or people too few: all steps are taken); refit: then learns from everybody with so many
    pairs: budget of the first task; explicit labels come on top; apart: share of it that is not the same
    needed: pairs of either kind, of each task
    rate: eta times the median |x_i - x_j|^2 of the first task's pairs
    bias_rate: the step of b over `rate`; printed is 0.1 eta, which for LBP, whose |x_i - x_j|^2 is near 65, is this
    whiten: start from whitened components (as printed), or not: for a descriptor that is good already
    distance: the start is scaled so that the median d_t^2 is this, and b starts there too (b = 1 as printed)
    averaging: of the projections over steps; 0 keeps the last, as printed
    stay: pull towards the model that is gone on from, by prior / n of n faces with a labelled fellow; none anew
    """

    dim: int = 64
    steps: int = 2000
    batch: int = 256
    held_out: float = 0.15
    refit: bool = True
    pairs: int = 100_000
    apart: float = 0.5
    needed: int = 10
    rate: float = 0.06
    bias_rate: float = 0.0015
    whiten: bool = True
    distance: float = 2.0
    averaging: float = 0.996
    stay: float = 0.1
    prior: float = 300.0
    device: str = "auto"

    @property
    def width(self) -> int | None:
        return self.learned["projections"].shape[2] if self.learned else None

    @abstractmethod
    def _pools(self, tasks: Sequence[TaskData]) -> list[Pool]:
        """The pairs of each task."""

    @abstractmethod
    def _anew(self, lesson: Lesson, pools: list[Pool]) -> Projections:
        """Where the descent starts."""

    @abstractmethod
    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        """The projections whose `stacked` are these, one a task."""

    def go_on_from(self, before: Embedder) -> Self:
        """From a model of the same method, which knows the tasks of the fit."""
        found = self._fitted(before, type(self))
        self.before, self.dim = found, found.dim
        return self

    def _learn(self, lesson: Lesson) -> None:
        """One descent; sets `learned` and `notes`."""
        pools = self._pools(lesson.tasks)
        if self.before is None:
            self._descend(lesson, pools, self._anew(lesson, pools), 0.0)
            return
        unknown = [t.task for t in lesson.tasks if t.task not in self.before.tasks]
        if unknown:
            raise CannotGoOn(f"it has learned {', '.join(self.before.tasks)}, and nothing of {', '.join(unknown)}")
        assert isinstance(self.before, Hinged)
        stacks = [tensor(self.before._map(t.task)[0], lesson.rows.device) for t in lesson.tasks]
        bias = [float(self.before.learned["bias"][self.before.tasks.index(t.task)]) for t in lesson.tasks]
        pull = self.rate * self.stay * self.prior / max(1, with_fellows(lesson.tasks[0]))
        self._descend(lesson, pools, self._again(stacks, bias), min(1.0, pull))

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if not data.tasks:
            raise TooFewPairs("tasks with labelled pairs", 1, 0)
        for task in data.tasks:
            require_pairs(task, self.needed)
        rows = tensor(data.rows, device_of(self.device))
        kept, held = self._apart(data.tasks)
        if min(counted(held)) < 1 or not all(self._enough(task) for task in kept):
            self._learn(Lesson(rows, data.tasks, None, self.steps, progress))
            return
        whole = (2 if self.refit else 1) * self.steps
        self._learn(Lesson(rows, kept, held, self.steps, lambda step, _, told: progress(step, whole, told)))
        if self.refit:
            found = self.notes["held_out"]
            steps = self.notes["steps"]
            rest = whole - steps
            self._learn(Lesson(rows, data.tasks, None, steps, lambda step, _, told: progress(rest + step, whole, told)))
            self.notes["held_out"] = found
            if not steps:
                progress(whole, whole, {})

    def _apart(self, tasks: Sequence[TaskData]) -> tuple[list[TaskData], TaskData]:
        """Every task without the people held out, and those people in the first task."""
        first = tasks[0]
        people = np.unique(first.people[first.people >= 0])
        held = people[np.random.default_rng((self.seed, 1)).random(len(people)) < self.held_out]
        return [only(task, ~np.isin(task.people, held)) for task in tasks], only(first, np.isin(first.people, held))

    def _enough(self, task: TaskData) -> bool:
        return min(counted(task)) >= self.needed and len(task.faces) > self._axes

    @property
    def _axes(self) -> int:
        """Whitened components that the start takes from the first task."""
        return self.dim

    def _pool(self, task: TaskData, budget: int, number: int) -> Pool:
        rng = np.random.default_rng((self.seed, 2, number))
        return pool(task, budget, rng, device_of(self.device), apart=self.apart)

    def _some(self, rows: Tensor, task: TaskData) -> Tensor:
        """(S, D) faces of the task, at most SAMPLE."""
        faces = np.random.default_rng((self.seed, 4)).permutation(task.faces)[:SAMPLE]
        return rows[torch.from_numpy(faces).to(rows.device)]

    def _components(self, rows: Tensor, axes: int) -> Tensor:
        """(axes, D) WPCA of these rows, or PCA. Raises TooFewPairs, WrongShape where there are not so many."""
        if len(rows) <= axes:
            raise TooFewPairs("faces", axes + 1, len(rows))
        if rows.shape[1] < axes:
            raise WrongShape("rows", f"(N, {axes} or more)", tuple(rows.shape))
        found, deviations, _ = principal(rows, axes, self.seed)
        return found if not self.whiten else found / deviations.clamp_min(1e-6 * float(deviations[0]))[:, None]

    def _rates(self, eta: float) -> Rates:
        """eta: the rate in the units of the descriptor."""
        return Rates(eta, 0.0, self.bias_rate * self.rate)

    def _descend(self, lesson: Lesson, pools: list[Pool], start: Projections, stay: float) -> None:
        rows, held = lesson.rows, lesson.held
        rates = self._rates(self.rate / typical(rows, pools[0]))
        stack = start.stacked(0).clone()
        look = None if held is None else watch(lambda faces: rows[faces] @ stack.T, held)

        furthest = 0

        def told(step: int, steps: int, values: dict[str, float]) -> None:
            nonlocal furthest
            furthest = max(furthest, step)
            lesson.progress(furthest, steps, values)

        def judged(at: Projections) -> float:
            stack.copy_(at.stacked(0))
            return look() if look else float("nan")

        def descended(factor: float) -> tuple[Projections, dict[str, float | int | None]]:
            random = np.random.default_rng((self.seed, 3))
            rounds = Rounds(rows, pools, rates.times(factor), self.batch, self.averaging, random, stay)
            try:
                return rounds.run(start, lesson.steps, told, judged if look else None)
            except FloatingPointError:
                if factor < SLOWEST:
                    raise NotFinite(f"what was learned at rate {self.rate:g}, and at {factor:g} of it,") from None
                return descended(factor / 2)

        found, notes = descended(1.0)
        stacks = torch.stack([found.stacked(t) for t in range(len(found.own))])
        self.notes = dict(notes)
        self.learned = {
            "projections": stacks.cpu().numpy(),
            "offsets": (stacks @ self._some(rows, lesson.tasks[0]).mean(0)).cpu().numpy(),
            "bias": np.array(found.bias, np.float32),
        }

    def _map(self, task: str) -> tuple[Rows, Rows]:
        """The projection and the offset of a task."""
        number = self.tasks.index(task)
        return self.learned["projections"][number], self.learned["offsets"][number]

    def _embed(self, rows: Rows, task: str) -> Rows:
        return project(rows, *self._map(task))

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.one(rows, *self._map(task))
