"""Logistic discriminant metric learning: one linear map, learned from pairs (Guillaumin 2009; 003, equation 5)."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Embedder, Progress, TaskData, TrainingSet
from ml.errors import CannotGoOn, NotFitted, TooFewPairs, WrongShape
from ml.metric_learning.batches import Batches
from ml.metric_learning.fit_data import Lesson
from ml.metric_learning.holdout import teaching, watch
from ml.metric_learning.linear_embedding import Projected
from ml.metric_learning.logistic.learner import Course, Descent, Model, Outcome
from ml.metric_learning.logistic.maps import Linear
from ml.metric_learning.subspace import Home, Space, Start, discriminant, principal_space, whitened, with_fellows
from ml.metric_learning.tensors import device_of, tensor
from ml.sampling.balanced import Balanced
from ml.sampling.base import Sampler
from ml.sampling.uniform import Uniform
from ml.types import Ids, Rows


@dataclass
class Ldml(Projected):
    """z = L x, with sum_ij w_ij ln(1 + exp(-y_ij (b - |z_i - z_j|^2))) + the pulls as small as they get.

    The weights of a batch sum to 1 and the pulls are measured in the scale of the descriptors, so options suit any
    number of faces and any descriptor. Learns the first task alone, within the leading principal axes; several
    descriptors in a row are weighted so that they vary alike.

    dim: d; steps: batches; held_out: share of the people kept out, on whom the best number of steps is chosen (then
    notes["steps"]; fit again with `steps` set to it and held_out=0)
    groups, faces, others: people in a batch, faces of each, and others beside them; balanced=False: faces at random
    negatives: weight of all negatives together over that of all positives
    corrections: share of the loss that explicit pairs carry once there are many; needed: pairs of either kind
    unit: divide each z by its norm, which tells how much the axes know of a photo rather than whose it is; without it,
    as in the paper: about as good for people learned from, and worse for strangers
    spherical: one map learns from z so divided too, times so much of the length that suits its start; 0: from z as it
    is, as in the paper. At 0.7 it knows the people learned from better, and strangers a little worse
    shrink: pull of L towards zero; stay: pull of L towards its start, by prior / n of n faces with a labelled fellow;
    prior: that many weigh as much as the belief that a person varies as all faces do, which "lda" begins with
    start: "lda" (`ridge`: share of the whole variance within people that is added to each axis), "wpca", "pca" (not
    whitened), "random", or "learned" (go on from what was fitted or loaded); its scale and b are fitted first
    rate: Adam's step, relative to the start's root mean square; averaging: of the parameters over steps
    axes: principal axes that L is sought in, fewer than D for speed; 0 where a row's numbers are its coordinates in
    such axes already, strongest first, about the mean and weighted; device: "auto", "cpu" or "cuda"
    """

    dim: int = 128
    steps: int = 300
    held_out: float = 0.0
    groups: int = 256
    faces: int = 4
    others: int = 256
    balanced: bool = True
    negatives: float = 20.0
    corrections: float = 0.2
    needed: int = 10
    unit: bool = True
    spherical: float = 0.0
    shrink: float = 2.5e-6
    stay: float = 1e-4
    prior: float = 300.0
    start: Start = "lda"
    ridge: float = 2e-4
    rate: float = 0.02
    averaging: float = 0.95
    axes: int = 2000
    device: str = "auto"

    def go_on_from(self, before: Embedder) -> Self:
        """From any one linear map: another LDML, a WPCA, ..., whose `dim` it takes over."""
        projection, offset = self._common(before)
        self.learned = {"projection": projection, "offset": offset}
        self.before, self.start, self.dim = before, "learned", len(projection)
        return self

    def _common(self, before: Embedder) -> tuple[Rows, Rows]:
        """The linear map that it is, (d, D), and its offset (d,). Raises CannotGoOn, NotFitted."""
        if not isinstance(before, Projected) or not before.linear or before.learned.keys() & {"gate", "gates"}:
            raise CannotGoOn(f"{type(self).__name__} goes on from one linear map, which {type(before).__name__} is not")
        if not before.learned:
            raise NotFitted(type(before).__name__)
        return before.learned["projection"], before.learned["offset"]

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        task, held = teaching(data, self.needed, self.held_out, self.seed)
        self.tasks = (task.task,)
        rows = tensor(data.rows, device_of(self.device))
        space = self._space(rows, task.faces, data.widths)
        batches = Batches(task, self._sampler(), np.random.default_rng(self.seed), self.negatives, self.corrections)
        self._learn(Lesson(task, held, space, space(rows), batches), progress)

    def _learn(self, lesson: Lesson, progress: Progress) -> None:
        model, found = self._one_map(lesson, self.steps, progress)
        self._keep(model.projection, found, lesson.space)
        self._note(found)

    def _one_map(self, lesson: Lesson, steps: int, progress: Progress, looks: bool = True) -> tuple[Linear, Outcome]:
        model, bias = self._model(lesson)
        course = self._course(steps, self.rate)
        if self.spherical:
            radius, bias = lesson.radius(model.projection, self.spherical)
            course = replace(course, radius=radius)
        return model, self._descend(lesson, model, bias, course, progress, looks)

    def _keep(self, projection: Tensor, found: Outcome, space: Space) -> None:
        outer = space.outside(projection)
        self.learned = {
            "projection": outer.cpu().numpy(),
            "offset": (outer @ space.mean).cpu().numpy(),
            "bias": np.array(found.bias, np.float32),
        }

    def _note(self, found: Outcome) -> None:
        self.notes = {"steps": found.steps, "loss": found.loss, "held_out": found.held_out}

    def _course(self, steps: int, rate: float) -> Course:
        return Course(steps, rate, averaging=self.averaging)

    def _descend(
        self, lesson: Lesson, model: Model, bias: float, course: Course, progress: Progress, looks: bool = True
    ) -> Outcome:
        looking = watch(lambda faces: model.project(lesson.of(faces), faces), lesson.held) if looks else None
        return Descent(model, lesson.coordinates, lesson.batches, course, bias).run(progress, looking)

    def _space(self, rows: Tensor, faces: Ids, widths: tuple[int, ...]) -> Space:
        if len(faces) <= self.dim:
            raise TooFewPairs("faces", self.dim + 1, len(faces))
        if rows.shape[1] < self.dim:
            raise WrongShape("rows", f"(N, {self.dim} or more)", tuple(rows.shape))
        return principal_space(rows, faces, self.axes, self.seed, home=self._home(rows.device), widths=widths)

    def _home(self, device: torch.device) -> Home | None:
        if self.start != "learned":
            return None
        if not self.learned:
            raise NotFitted(type(self).__name__)
        return tensor(self.learned["projection"], device), tensor(self.learned["offset"], device)

    def _model(self, lesson: Lesson) -> tuple[Linear, float]:
        """The map before its first step, and b."""
        projection, bias = lesson.scaled(self._start(lesson.space, lesson.of(lesson.task.faces), lesson.task))
        stay = self.stay * self.prior / max(1, with_fellows(lesson.task))
        return Linear(projection, self.shrink * lesson.spread, stay * lesson.spread), bias

    def _start(self, space: Space, seen: Tensor, task: TaskData) -> Tensor:
        """L in the coordinates of the space, (dim, r)."""
        if self.start == "learned":
            return space.within(tensor(self.learned["projection"], seen.device))
        if self.start == "random":
            generator = torch.Generator().manual_seed(self.seed)
            return torch.randn(self.dim, seen.shape[1], generator=generator).to(seen.device)
        if self.start == "lda":
            return discriminant(seen, task, self.dim, self.ridge, self.prior)
        if self.start == "wpca":
            return whitened(seen, self.dim)
        return torch.eye(self.dim, seen.shape[1], device=seen.device)

    def _sampler(self) -> Sampler:
        if self.balanced:
            return Balanced(self.groups, self.faces, self.others)
        return Uniform(self.groups * self.faces + self.others)
