"""The base of methods that learn projections from pairs by a hinge loss: stML, PCCA, utML, CP-mtML and mtLMCA."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet, offset_progress, require_fitted
from ml.errors import CannotGoOn, NotFitted, TooFewPairs, WrongShape
from ml.metric_learning.fit_data import FitData, FitOptions
from ml.metric_learning.hinge.learner import HingeLearner, HingeSchedule, descend_safely
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.holdout import (
    count_pairs,
    require_pairs,
    require_task,
    scale_proximal_weight,
    split_known_people,
)
from ml.metric_learning.linear_embedding import project
from ml.metric_learning.pairs import PairSet, draw_pair_set, median_pair_distance, scale_to_distance
from ml.metric_learning.principal_axes import fit_principal_axes, whiten_axes
from ml.metric_learning.subspace import Subspace
from ml.metric_learning.tensors import as_tensor, select_device
from ml.options import option, option_group
from ml.types import Rows

SAMPLE_FACES = 4000
"""Faces from which the initial components and the mean embedding are computed."""


@dataclass
class HingeEmbedder(Embedder):
    """Minimises the hinge over pairs of one task or of several. All options are in units that suit any descriptor."""

    dim: int = option(64, "numbers of a projection", low=1, unit="numbers")
    fitting: FitOptions = option_group(FitOptions, steps=2000, proximal_weight=0.1)
    batch: int = option(256, "pairs in a batch", low=1, unit="pairs")
    refit: bool = option(True, "afterwards, fit to everybody with the best number of steps")
    pairs: int = option(100_000, "pairs drawn for the first task; labelled pairs are added", low=1, unit="pairs")
    negative_share: float = option(0.5, "share of negatives among the drawn pairs", low=0, high=1, formerly="apart")
    rate: float = option(0.06, "eta times the median |x_i - x_j|^2 of the first task's pairs", low=0)
    bias_rate: float = option(
        0.0015,
        "rate of b over `rate`; the paper's 0.1 eta equals this for LBP, whose |x_i - x_j|^2 is near 65",
        low=0,
    )
    whiten: bool = option(
        True, "start from whitened components, as in the paper; off suits descriptors that are accurate by themselves"
    )
    distance: float = option(2.0, "median d_t^2 to which the start is scaled, and initial b (1 in the paper)", low=0)
    averaging: float = option(
        0.996, "decay of the running average of the projections over steps; 0 keeps the last ones, as in the paper",
        low=0, high=1,
    )  # fmt: skip
    learns_all_tasks: ClassVar[bool] = False

    @property
    def width(self) -> int | None:
        return self.learned["projections"].shape[2] if self.learned else None

    def _make_start(self, data: FitData, pair_sets: list[PairSet]) -> Projections:
        """Make the initial projections of a new fit from the first task's components."""
        components = self._fit_components(self._sample(data, data.task), self.dim)
        start = scale_to_distance(components, data.coordinates, pair_sets[0], self.distance)
        return self._restore([start] * len(data.tasks), [self.distance] * len(data.tasks))

    @abstractmethod
    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        """Restore the projections from their `stack` for each task."""

    def start_from(self, model: Embedder) -> Self:
        """Start from a model of the same method that was trained on the same tasks."""
        start = require_fitted(self, model, type(self))
        self.start_model, self.dim = start, start.dim
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        require_task(data)
        tasks = data.tasks if self.learns_all_tasks else data.tasks[:1]
        self.tasks = tuple(task.task for task in tasks)
        for task in tasks:
            require_pairs(task, self.fitting.min_pairs)
        rows = as_tensor(data.rows, select_device(self.fitting.device))
        everybody = FitData(rows, Subspace(None, torch.zeros_like(rows[0])), tasks)
        kept, held_out = split_known_people(tasks, self.fitting.held_out, self.seed)
        if min(count_pairs(held_out)) < 1 or not all(self._has_enough(task) for task in kept):
            self._learn(everybody, self.fitting.steps, progress)
            return
        total = (2 if self.refit else 1) * self.fitting.steps
        self._learn(
            replace(everybody, tasks=kept, held_out=held_out), self.fitting.steps, offset_progress(0, total, progress)
        )
        if self.refit:
            self._refit(everybody, total, progress)

    def _refit(self, everybody: FitData, total: int, progress: Progress) -> None:
        """Fit to everybody with the number of steps that was best on held-out people."""
        steps, score = self.notes["steps"], self.notes["held_out"]
        self._learn(everybody, steps, offset_progress(total - steps, total, progress))
        self.notes["held_out"] = score
        if not steps:
            progress(total, total, {})

    def _learn(self, data: FitData, steps: int, progress: Progress) -> None:
        """Run one fit, and set `learned` and `notes`."""
        pair_sets = self._draw_pair_sets(data.tasks)
        if self.start_model is None:
            start, pull = self._make_start(data, pair_sets), 0.0
        else:
            start, weight = self._resume(data), self.rate * self.fitting.proximal_weight
            pull = min(1.0, scale_proximal_weight(weight, self.fitting.prior, data.task))
        self._descend(data, pair_sets, start, steps, pull, progress)

    def _resume(self, data: FitData) -> Projections:
        """Return the projections of the start model. Raises CannotGoOn."""
        model = self.start_model
        assert isinstance(model, HingeEmbedder)
        unknown = [t.task for t in data.tasks if t.task not in model.tasks]
        if unknown:
            raise CannotGoOn(
                f"the start model was trained on {', '.join(model.tasks)}, but not on {', '.join(unknown)}"
            )
        stacks = [as_tensor(model._get_map(t.task)[0], data.coordinates.device) for t in data.tasks]
        bias = [float(model.learned["bias"][model.tasks.index(t.task)]) for t in data.tasks]
        return self._restore(stacks, bias)

    def _descend(
        self, data: FitData, pair_sets: list[PairSet], start: Projections, steps: int, pull: float, progress: Progress
    ) -> None:
        rows = data.coordinates
        rates = self._make_rates(self.rate / median_pair_distance(rows, pair_sets[0]))

        def make_learner(factor: float) -> HingeLearner:
            schedule = HingeSchedule(steps, self.batch, rates.scale(factor), self.averaging, pull)
            return HingeLearner(rows, pair_sets, schedule, start, np.random.default_rng((self.seed, 3)))

        stack = start.stack(0).clone()
        score = data.make_score(lambda faces: rows[faces] @ stack.T)

        def score_projections(projections: Projections) -> float:
            stack.copy_(projections.stack(0))
            return score() if score else float("nan")

        best, outcome = descend_safely(make_learner, steps, progress, score_projections if score else None)
        stacks = torch.stack([best.stack(t) for t in range(len(best.own))])
        self.notes = outcome.notes
        self.learned = {
            "projections": stacks.cpu().numpy(),
            "offsets": (stacks @ self._sample(data, data.task).mean(0)).cpu().numpy(),
            "bias": np.array(best.bias, np.float32),
        }

    def _has_enough(self, task: TaskData) -> bool:
        return min(count_pairs(task)) >= self.fitting.min_pairs and len(task.faces) > self._start_axes

    @property
    def _start_axes(self) -> int:
        """The number of the first task's components in the start."""
        return self.dim

    @property
    def _further_pairs(self) -> int:
        """The number of pairs drawn for each task after the first."""
        return 0

    def _draw_pair_sets(self, tasks: Sequence[TaskData]) -> list[PairSet]:
        budgets = [self.pairs] + [self._further_pairs] * (len(tasks) - 1)
        device = select_device(self.fitting.device)
        return [
            draw_pair_set(
                task, budget, np.random.default_rng((self.seed, 2, number)), device, negative_share=self.negative_share
            )
            for number, (task, budget) in enumerate(zip(tasks, budgets, strict=True))
        ]

    def _sample(self, data: FitData, task: TaskData) -> Tensor:
        """Return the (S, D) rows of at most SAMPLE faces of a task."""
        return data.select(np.random.default_rng((self.seed, 4)).permutation(task.faces)[:SAMPLE_FACES])

    def _fit_components(self, rows: Tensor, axes: int) -> Tensor:
        """Fit WPCA, or PCA, to rows: (axes, D). Raises TooFewPairs or WrongShape if there are too few."""
        if len(rows) <= axes:
            raise TooFewPairs("faces", axes + 1, len(rows))
        if rows.shape[1] < axes:
            raise WrongShape("rows", f"(N, {axes} or more)", tuple(rows.shape))
        components, deviations, _ = fit_principal_axes(rows, axes, self.seed)
        return whiten_axes(components, deviations) if self.whiten else components

    def _make_rates(self, eta: float) -> Rates:
        """Make the rates. eta: in the units of the descriptor"""
        return Rates(eta, 0.0, self.bias_rate * self.rate)

    def _get_map(self, task: str) -> tuple[Rows, Rows]:
        """Return the projection and the offset of a task."""
        number = self.tasks.index(task)
        return self.learned["projections"][number], self.learned["offsets"][number]

    def split_projections(self) -> dict[str, ProjectionParts]:
        """Split the projection of each task into what all tasks share and what is its own. Raises NotFitted."""
        if not self.learned:
            raise NotFitted(type(self).__name__)
        projections = self._restore_learned()
        common = projections.own[0][:0] if projections.common is None else projections.common
        own_of_tasks = zip(self.tasks, projections.own, strict=True)
        return {task: ProjectionParts(common.numpy(), own.numpy()) for task, own in own_of_tasks}

    def _restore_learned(self) -> Projections:
        """Restore the projections of all tasks."""
        stacks = [torch.from_numpy(np.array(self._get_map(task)[0])) for task in self.tasks]
        return self._restore(stacks, self.learned["bias"].tolist())

    def _embed(self, rows: Rows, task: str) -> Rows:
        return project(rows, *self._get_map(task))

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.single(rows, *self._get_map(task))
