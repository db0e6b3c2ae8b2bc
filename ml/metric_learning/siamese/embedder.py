"""What the two layers of 001 share on descriptors that stay as they are: the options, the start, the fit."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.layers.base import Layer, random_start
from ml.losses.triplet import Triplet
from ml.metric_learning.holdout import counted, require_pairs, without_people
from ml.metric_learning.linear_embedding import Projected, norms
from ml.metric_learning.siamese.fit_data import Lesson, unit_space
from ml.metric_learning.siamese.learner import Course, Descent, Outcome
from ml.metric_learning.siamese.mining_batches import Batches
from ml.metric_learning.subspace import discriminant, whitened, with_fellows
from ml.metric_learning.tensors import device_of, median_squared_distance, tensor
from ml.mining.semihard import SemiHard
from ml.sampling.balanced import Balanced
from ml.types import Rows

JUDGES = 0.2
"""Share of the people who choose the start where nobody is held out for more."""


@dataclass
class Siamese(Projected):
    """z = the layer's map of x / |x|, compared by squared distance; learns the first task, from triplets (equation 12).

    dim: p; steps: batches at most; held_out: share of the people kept out, on whom the best number of steps is chosen
    (notes["steps"]), which is 0 unless they gain more than by chance; with 0, or people too few, all are taken
    refit: then learns from everybody with so many
    groups, faces, others: people in a batch, faces of each, and others beside them
    margin: tau, where the median squared distance is `distance` at the start; per_anchor: nu, triplets an anchor
    corrections: share of the loss that explicit pairs carry once there are many; needed: pairs of either kind
    length: "kept", as the paper has it, or "unit", each embedding divided by its norm once it is learned
    stay: pull of each squared distance in a batch to what it was at the start, by prior / n of n faces with a fellow
    start: "pca" (the descriptor's own distance), "lda" (`ridge`: share of the variance within people added to each
    axis), "wpca", "random", or "learned" (go on from what was fitted or loaded)
    "best": the descriptor's own distance, unless people whom it did not learn from are told apart better by "lda" or
    at unit length, by more than chance
    rate: eta, where a step of 1 is about as large as the map; momentum: nu of equation 10
    axes: principal axes that the map is sought in, fewer than D for speed; device: "auto", "cpu" or "cuda"
    """

    dim: int = 128
    steps: int = 300
    held_out: float = 0.15
    refit: bool = True
    groups: int = 128
    faces: int = 4
    others: int = 128
    margin: float = 0.5
    distance: float = 2.0
    per_anchor: int = 5
    corrections: float = 0.2
    needed: int = 10
    length: Literal["best", "kept", "unit"] = "best"
    stay: float = 1.0
    prior: float = 300.0
    start: Literal["best", "pca", "lda", "wpca", "random", "learned"] = "best"
    ridge: float = 2e-4
    rate: float = 0.1
    momentum: float = 0.9
    axes: int = 2000
    device: str = "auto"
    linear: ClassVar[bool] = False

    @abstractmethod
    def _layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        """The layer at its start (r, p), and the rates of rSGD-M and RMSProp; spread: the mean |x - mean|^2."""

    def go_on_from(self, before: Embedder) -> Self:
        """From either layer of 001, at the length that its embeddings have."""
        found = self._fitted(before, Siamese)  # type: ignore[type-abstract]
        self.learned, self.notes = dict(found.learned), {"unit": found.unit}
        self.before, self.start, self.length, self.dim = found, "learned", "best", len(found.learned["projection"])
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        judged = self._lesson(data)
        start, unit = self._choice(judged)
        self.notes = {"start": start, "unit": unit}
        told, steps = None, self.steps
        whole = self.steps
        if judged.held is not None and self.held_out:
            whole = (1 + self.refit) * self.steps
            found = told = self._learn(judged, start, steps, lambda s, _, v: progress(s, whole, v))
            steps = told.steps
        if told is None or self.refit:
            everybody = replace(judged, task=data.tasks[0], held=None)
            found = self._learn(everybody, start, steps, lambda s, _, v: progress(whole - steps + s, whole, v))
        progress(whole, whole, {})
        projection = judged.space.outside(found.matrix.T)
        self.learned = {
            "projection": projection.cpu().numpy(),
            "offset": (projection @ judged.space.mean).cpu().numpy(),
        }
        self.notes |= {"steps": steps, "loss": found.loss, "held_out": told and told.held_out}

    def _lesson(self, data: TrainingSet) -> Lesson:
        """With people held out, if there are enough for that."""
        task = self._checked(data)
        rows = tensor(data.rows, device_of(self.device))
        home = None
        if self.start == "learned":
            home = tensor(self.learned["projection"], rows.device), tensor(self.learned["offset"], rows.device)
        space, rows = unit_space(rows, task.faces, self.axes, self.seed, home)
        if rows.shape[1] < self.dim:
            raise TooFewPairs("faces that differ", self.dim + 1, rows.shape[1] + 1)
        kept, held = without_people(task, self.held_out or JUDGES, np.random.default_rng((self.seed, 1)))
        enough = min(counted(held)) > 0 and min(counted(kept)) >= self.needed and len(kept.faces) > self.dim
        return Lesson(space, rows, kept, held) if enough else Lesson(space, rows, task)

    def _checked(self, data: TrainingSet) -> TaskData:
        """The first task. Raises TooFewPairs, WrongShape, NotFitted."""
        if not data.tasks:
            raise TooFewPairs("tasks with labelled pairs", 1, 0)
        task = data.tasks[0]
        require_pairs(task, self.needed)
        if len(task.faces) <= self.dim:
            raise TooFewPairs("faces", self.dim + 1, len(task.faces))
        if data.rows.shape[1] < self.dim:
            raise WrongShape("rows", f"(N, {self.dim} or more)", data.rows.shape)
        if self.start == "learned" and not self.learned:
            raise NotFitted(type(self).__name__)
        self.tasks = (task.task,)
        return task

    def _choice(self, lesson: Lesson) -> tuple[str, bool]:
        """Where to start, and whether embeddings are brought to unit length."""
        starts = ("pca", "lda") if self.start == "best" else (self.start,)
        either = (self.unit,) if self.start == "learned" else (False, True)
        units = {"best": either, "kept": (False,), "unit": (True,)}[self.length]
        if lesson.judge(True) is None:  # with little known, "lda" is whitened components
            return starts[-1], units[-1]
        worth: dict[tuple[str, bool], float] = {}
        for start in starts:
            matrix = self._start(start, lesson)
            worth |= {(start, unit): judge(matrix) for unit in units if (judge := lesson.judge(unit))}
        first, best = next(iter(worth)), max(worth, key=lambda choice: worth[choice])
        return best if worth[best] > worth[first] + lesson.doubt(worth[first]) else first

    @property
    def unit(self) -> bool:  # type: ignore[override]
        return bool(self.notes.get("unit"))

    def _learn(self, lesson: Lesson, start: str, steps: int, progress: Progress) -> Outcome:
        layer, rate, scale_rate = self._layer(self._start(start, lesson), lesson.spread)
        sampler = Balanced(self.groups, self.faces, self.others)
        batches = Batches(lesson.task, sampler, np.random.default_rng((self.seed, 2)), self.corrections)
        miner, loss = SemiHard(self.per_anchor), Triplet(self.margin)
        descent = Descent(layer, lesson, self.unit, batches, miner, loss, self.distance, self.seed)
        stay = self.stay * self.prior / max(1, with_fellows(lesson.task))
        return descent.run(Course(steps, rate, scale_rate, self.momentum, stay), progress)

    def _start(self, name: str, lesson: Lesson) -> Tensor:
        """(r, p), at the scale where the median squared distance is `distance`."""
        seen, space = lesson.of(lesson.task.faces), lesson.space
        r = seen.shape[1]
        if name == "learned":  # at the scale that it was learned at
            return space.within(tensor(self.learned["projection"], seen.device)).T
        if name == "random":
            matrix = random_start(r, self.dim, self.seed).to(seen)
        elif name == "lda":
            matrix = discriminant(seen, lesson.task, self.dim, self.ridge, self.prior).T
        else:
            matrix = whitened(seen, self.dim).T if name == "wpca" else torch.eye(r, self.dim).to(seen)
        scale: float = (self.distance / median_squared_distance(seen @ matrix, self.seed)) ** 0.5
        return matrix.mul(scale)

    def _embed(self, rows: Rows, task: str) -> Rows:
        return super()._embed(rows / norms(rows)[:, None], task)

    def maps(self, rows: Rows, task: str = "identity") -> Maps | None:
        return super().maps(rows / norms(rows)[:, None], task)
