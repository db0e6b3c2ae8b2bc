"""The base of 001's two layers on fixed descriptors: options, start and fit."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Embedder, Maps, Progress, TaskData, TrainingSet, offset_progress, require_fitted
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.layers.base import Layer, random_start
from ml.losses.triplet import Triplet
from ml.metric_learning.fit_data import FitData, FitOptions
from ml.metric_learning.holdout import (
    count_pairs,
    require_pairs,
    require_task,
    scale_proximal_weight,
    split_by_person,
)
from ml.metric_learning.initial_maps import fit_discriminant, make_whitening
from ml.metric_learning.linear_embedding import embed_linear, get_width, make_linear_maps, norms
from ml.metric_learning.siamese.learner import (
    LayerFit,
    LayerLearner,
    LayerSchedule,
    MatrixScore,
    chance_margin,
    descend,
)
from ml.metric_learning.siamese.mining_batches import MiningBatches
from ml.metric_learning.subspace import fit_direction_subspace
from ml.metric_learning.tensors import as_arrays, as_tensor, median_squared_distance, select_device
from ml.mining.semihard import SemiHard
from ml.options import option, option_group
from ml.sampling.balanced import Balanced
from ml.types import Rows

HELD_OUT_FOR_START = 0.2
"""Share of the people who are held out to choose the start, if nobody else is held out."""


@dataclass
class SiameseEmbedder(Embedder):
    """z = the layer's map of x / |x|, compared by squared distance. Learns one task by triplets (equation 12).

    No step is taken unless the people held out gain more than by chance. The pull towards the start is one of each
    squared distance in a batch to what it was at the start.
    """

    dim: int = option(128, "numbers of an embedding", low=1, unit="numbers")
    fitting: FitOptions = option_group(FitOptions, proximal_weight=1.0)
    refit: bool = option(True, "afterwards, fit to everybody with the best number of steps")
    groups: int = option(128, "people in a batch", low=1, unit="people")
    faces: int = option(4, "faces of each of these people in a batch", low=1, unit="faces")
    others: int = option(128, "further faces in a batch, as negatives", low=0, unit="faces")
    margin: float = option(0.5, "tau of the triplet loss", low=0)
    distance: float = option(2.0, "median squared distance to which the start is scaled", low=0)
    per_anchor: int = option(5, "nu, triplets for each anchor", low=1, unit="triplets")
    corrections: float = option(0.2, "share of labelled pairs in the loss, if there are many labels", low=0, high=1)
    length: Literal["best", "kept", "unit"] = option(
        "best", "divide embeddings by their norm (unit) or not (kept); best: whichever is better on held-out people"
    )
    start: Literal["best", "pca", "lda", "wpca", "random", "learned"] = option(
        "best",
        "where the map starts: the descriptor's own distance (pca), Fisher's discriminant, whitened axes, at random, "
        "or a fitted or loaded map; best: pca, unless lda or unit length is better on held-out people than by chance",
    )
    ridge: float = option(2e-4, "share of the variance within people that lda adds to each axis", low=0)
    rate: float = option(0.1, "eta; a step of 1 is about as large as the map", low=0)
    momentum: float = option(0.9, "nu of equation 10", low=0, high=1)
    axes: int = option(
        2000, "number of principal axes in which the map is learned; fewer are faster", low=1, unit="axes"
    )
    normalises_rows: ClassVar[bool] = True

    @abstractmethod
    def _make_layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        """Make the layer from its start (r, p), with the rates of rSGD-M and RMSProp; spread: the mean |x_i - x_j|^2"""

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    @property
    def unit(self) -> bool:
        """Whether embeddings are divided by their norm, as chosen by the fit."""
        return bool(self.notes.get("unit"))

    def start_from(self, model: Embedder) -> Self:
        """Start from either layer of 001, with the same normalisation of embeddings."""
        fitted = require_fitted(self, model, SiameseEmbedder)  # type: ignore[type-abstract]
        self.learned, self.notes = dict(fitted.learned), {"unit": fitted.unit}
        self.start_model, self.start, self.length = fitted, "learned", "best"
        self.dim = len(fitted.learned["projection"])
        return self

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        fit_data = self._prepare(data)
        start, unit = self._choose_start(fit_data)
        self.notes = {"start": start, "unit": unit}
        judged, steps, total = None, self.fitting.steps, self.fitting.steps
        if fit_data.held_out is not None and self.fitting.held_out:
            total = (1 + self.refit) * self.fitting.steps
            fitted = judged = self._learn(fit_data, start, steps, offset_progress(0, total, progress))
            steps = judged.steps
        if judged is None or self.refit:
            everybody = replace(fit_data, tasks=data.tasks[:1], held_out=None)
            fitted = self._learn(everybody, start, steps, offset_progress(total - steps, total, progress))
        progress(total, total, {})
        projection = fit_data.subspace.lift(fitted.matrix.T)
        self.learned = as_arrays({"projection": projection, "offset": projection @ fit_data.subspace.mean})
        self.notes |= {"steps": steps, "loss": fitted.loss, "held_out": judged and judged.held_out}

    def _prepare(self, data: TrainingSet) -> FitData:
        """Project the first task to its subspace, and hold people out if there are enough."""
        task = self._check_task(data)
        rows, start = as_tensor(data.rows, select_device(self.fitting.device)), None
        if self.start == "learned":
            start = as_tensor(self.learned["projection"], rows.device), as_tensor(self.learned["offset"], rows.device)
        subspace, coordinates = fit_direction_subspace(rows, task.faces, self.axes, self.seed, start)
        if coordinates.shape[1] < self.dim:
            raise TooFewPairs("faces that differ", self.dim + 1, coordinates.shape[1] + 1)
        rng = np.random.default_rng((self.seed, 1))
        kept, held_out = split_by_person(task, self.fitting.held_out or HELD_OUT_FOR_START, rng)
        enough = min(count_pairs(kept)) >= self.fitting.min_pairs and len(kept.faces) > self.dim
        if min(count_pairs(held_out)) > 0 and enough:
            return FitData(coordinates, subspace, (kept,), held_out)
        return FitData(coordinates, subspace, (task,))

    def _check_task(self, data: TrainingSet) -> TaskData:
        """Return the first task. Raises TooFewPairs, WrongShape, NotFitted."""
        task = require_task(data)
        require_pairs(task, self.fitting.min_pairs)
        if len(task.faces) <= self.dim:
            raise TooFewPairs("faces", self.dim + 1, len(task.faces))
        if data.rows.shape[1] < self.dim:
            raise WrongShape("rows", f"(N, {self.dim} or more)", data.rows.shape)
        if self.start == "learned" and not self.learned:
            raise NotFitted(type(self).__name__)
        self.tasks = (task.task,)
        return task

    def _choose_start(self, data: FitData) -> tuple[str, bool]:
        """Choose the start, and whether embeddings are divided by their norm."""
        starts = ("pca", "lda") if self.start == "best" else (self.start,)
        either = (self.unit,) if self.start == "learned" else (False, True)
        units = {"best": either, "kept": (False,), "unit": (True,)}[self.length]
        if MatrixScore.of(data, True) is None:  # with few labels, "lda" is whitened components
            return starts[-1], units[-1]
        scores: dict[tuple[str, bool], float] = {}
        for start in starts:
            matrix = self._make_start(start, data)
            scores |= {(start, unit): score(matrix) for unit in units if (score := MatrixScore.of(data, unit))}
        first, best = next(iter(scores)), max(scores, key=lambda choice: scores[choice])
        return best if scores[best] > scores[first] + chance_margin(data, scores[first]) else first

    def _learn(self, data: FitData, start: str, steps: int, progress: Progress) -> LayerFit:
        layer, rate, scale_rate = self._make_layer(self._make_start(start, data), data.mean_squared_distance)
        sampler = Balanced(self.groups, self.faces, self.others)
        batches = MiningBatches(data.task, sampler, np.random.default_rng((self.seed, 2)), self.corrections)
        proximal = scale_proximal_weight(self.fitting.proximal_weight, self.fitting.prior, data.task)
        schedule = LayerSchedule(steps, rate, scale_rate, self.momentum, proximal, self.distance)
        miner, loss = SemiHard(self.per_anchor), Triplet(self.margin)
        learner = LayerLearner(layer, data, batches, miner, loss, schedule, self.seed)
        return descend(learner, self.unit, progress)

    def _make_start(self, name: str, data: FitData) -> Tensor:
        """Make the start, (r, p), scaled so that the median squared distance is `distance`."""
        known = data.known
        r = known.shape[1]
        if name == "learned":  # at the scale that it was learned at
            return data.subspace.restrict(as_tensor(self.learned["projection"], known.device)).T
        if name == "random":
            matrix = random_start(r, self.dim, self.seed).to(known)
        elif name == "lda":
            matrix = fit_discriminant(known, data.task, self.dim, self.ridge, self.fitting.prior).T
        else:
            matrix = make_whitening(known, self.dim).T if name == "wpca" else torch.eye(r, self.dim).to(known)
        scale: float = (self.distance / median_squared_distance(known @ matrix, self.seed)) ** 0.5
        return matrix.mul(scale)

    def _embed(self, rows: Rows, task: str) -> Rows:
        return embed_linear(self.learned, rows / norms(rows)[:, None], self.unit)

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return make_linear_maps(self.learned, rows / norms(rows)[:, None], self.unit)
