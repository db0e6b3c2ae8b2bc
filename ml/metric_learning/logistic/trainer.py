"""Fits linear maps by LDML's loss: the subspace, the start, the scale and the descent."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import Progress, TaskData, TrainingSet
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.holdout import scale_proximal_weight, split_training_set
from ml.metric_learning.initial_maps import fit_discriminant, make_whitening
from ml.metric_learning.logistic.learner import AdamSchedule, descend
from ml.metric_learning.logistic.loss import fit_scale
from ml.metric_learning.logistic.maps import LearnableMap, LinearMap
from ml.metric_learning.logistic.operating_point import OperatingLoss, find_threshold
from ml.metric_learning.logistic.options import BatchOptions, MapOptions
from ml.metric_learning.logistic.pair_batches import PairBatch, PairBatches
from ml.metric_learning.subspace import StartMap, Subspace, fit_subspace
from ml.metric_learning.tensors import as_arrays, as_tensor, select_device
from ml.metric_learning.training_loop import TrainingOutcome
from ml.sampling.balanced import Balanced
from ml.sampling.base import Sampler
from ml.sampling.uniform import Uniform


class LogisticMethod(Protocol):
    """An embedder that begins with a linear map fitted by LDML's loss."""

    seed: int
    dim: int
    held_out: float
    device: str
    batches: BatchOptions
    map: MapOptions
    learned: dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A fitted map of coordinates, the bias of its loss, and how the descent went."""

    map: LinearMap
    bias: float
    outcome: TrainingOutcome


class LogisticTrainer:
    """The parts that the fits of a method share: its options, the data and the batches."""

    def __init__(self, method: LogisticMethod, data: TrainingSet) -> None:
        """Hold people out and project the rows. Raises TooFewPairs, WrongShape, NotFitted."""
        self.method, self.options = method, method.map
        task, held_out = split_training_set(data, method.batches.min_pairs, method.held_out, method.seed)
        rows = as_tensor(data.rows, select_device(method.device))
        start = self._find_start(rows.device)
        subspace = self._fit_subspace(rows, task, start, data.widths)
        self.data = FitData(subspace.project(rows), subspace, (task,), held_out)
        self.start = start
        self.batches = self.make_batches(task, np.random.default_rng(method.seed))

    def _find_start(self, device: torch.device) -> StartMap | None:
        if self.options.start != "learned":
            return None
        learned = self.method.learned
        if not learned:
            raise NotFitted(type(self.method).__name__)
        return as_tensor(learned["projection"], device), as_tensor(learned["offset"], device)

    def _fit_subspace(self, rows: Tensor, task: TaskData, start: StartMap | None, widths: tuple[int, ...]) -> Subspace:
        dim = self.method.dim
        if len(task.faces) <= dim:
            raise TooFewPairs("faces", dim + 1, len(task.faces))
        if rows.shape[1] < dim:
            raise WrongShape("rows", f"(N, {dim} or more)", tuple(rows.shape))
        return fit_subspace(rows, task.faces, self.options.axes, self.method.seed, start=start, widths=widths)

    def make_batches(self, task: TaskData, rng: np.random.Generator) -> PairBatches:
        """Return the batches of a task that the method's options describe."""
        options = self.method.batches
        sampler: Sampler = Balanced(options.groups, options.faces, options.others)
        if not options.balanced:
            sampler = Uniform(options.groups * options.faces + options.others)
        return PairBatches(task, sampler, rng, options.corrections, negatives=options.negatives)

    def make_schedule(self, steps: int, rate: float) -> AdamSchedule:
        """Return a schedule with the method's averaging."""
        return AdamSchedule(steps, rate, averaging=self.options.averaging)

    def fit_linear(self, steps: int, progress: Progress, *, early_stopping: bool = True) -> LinearFit:
        """Fit the first map, from the method's start."""
        projection, bias, radius = self.fit_start()
        proximal = scale_proximal_weight(self.options.proximal_weight, self.options.prior, self.data.task)
        model = self.make_map(projection, proximal)
        bias, outcome = self.fit_map(model, bias, steps, progress, radius=radius, early_stopping=early_stopping)
        return LinearFit(model, bias, outcome)

    def fit_start(self) -> tuple[Tensor, float, float]:
        """Return the map from which the fit starts, (d, r), at its best scale, with its bias and radius.

        The radius is the length to which z is scaled in the loss, 0 if it is not scaled.
        """
        projection, bias = self.rescale(self._initial_map())
        if not self.options.spherical:
            return projection, bias, 0.0
        radius, bias = self._fit_radius(projection)
        return projection, bias, radius

    def fit_map(
        self,
        model: LearnableMap,
        bias: float,
        steps: int,
        progress: Progress,
        *,
        radius: float = 0.0,
        early_stopping: bool = True,
    ) -> tuple[float, TrainingOutcome]:
        """Fit the parameters of a map, and return the bias and the outcome. bias, radius: see `fit_start`"""
        operating = self._make_operating_loss(model, radius) if self.options.operating_weight else None
        schedule = replace(self.make_schedule(steps, self.options.rate), radius=radius, operating=operating)
        return descend(self.data, model, self.batches, bias, schedule, progress, early_stopping=early_stopping)

    def _make_operating_loss(self, model: LearnableMap, radius: float) -> OperatingLoss:
        """Find the distance at which a batch has the false matches of the operating point before the fit."""
        batch = self.batches.draw(self.data.coordinates.device, self.data.coordinates.dtype)
        z = model.project(self.data.select(batch.faces), batch.faces)
        if radius:
            z = radius * torch.nn.functional.normalize(z)
        return OperatingLoss(self.options.operating_weight, find_threshold(z, batch))

    def make_map(self, projection: Tensor, proximal_weight: float) -> LinearMap:
        """Make a map with this method's regularisers, which are scaled by the variance of the descriptors.

        projection: (d, r)
        """
        variance = self.data.mean_squared_norm
        return LinearMap(projection, self.options.shrink * variance, proximal_weight * variance)

    def rescale(self, projection: Tensor) -> tuple[Tensor, float]:
        """Return a (d, r) projection at the scale, and the bias, with the smallest loss on a batch."""
        batch = self._draw(projection)
        scale, bias = fit_scale(self.data.select(batch.faces) @ projection.T, batch)
        return projection * scale**0.5, bias

    def _fit_radius(self, projection: Tensor) -> tuple[float, float]:
        """Return the best length of z, times `spherical`, and the bias for it, on a batch of equal lengths."""
        batch, share = self._draw(projection), self.options.spherical
        z = torch.nn.functional.normalize(self.data.select(batch.faces) @ projection.T)
        scale, bias = fit_scale(z, batch)
        return share * scale**0.5, share**2 * bias

    def _draw(self, projection: Tensor) -> PairBatch:
        return self.batches.draw(projection.device, projection.dtype)

    def _initial_map(self) -> Tensor:
        """Return the initial L in the coordinates of the subspace, (dim, r)."""
        known, dim = self.data.known, self.method.dim
        if self.start is not None:
            return self.data.subspace.restrict(self.start[0])
        if self.options.start == "random":
            generator = torch.Generator().manual_seed(self.method.seed)
            return torch.randn(dim, known.shape[1], generator=generator).to(known.device)
        if self.options.start == "lda":
            return fit_discriminant(known, self.data.task, dim, self.options.ridge, self.options.prior)
        if self.options.start == "wpca":
            return make_whitening(known, dim)
        return torch.eye(dim, known.shape[1], device=known.device)


def export_linear(fitted: LinearFit, subspace: Subspace) -> dict[str, NDArray[Any]]:
    """Return the arrays that an embedder with one linear map keeps: the projection (d, D) and the offset (d,)."""
    projection = subspace.lift(fitted.map.projection)
    kept = {"projection": projection, "offset": projection @ subspace.mean}
    return as_arrays(kept) | {"bias": np.array(fitted.bias, np.float32)}
