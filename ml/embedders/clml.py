"""Coordinated local metric learning: local linear maps into one common space.

Source: 003.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import Mixture, fit_mixture
from ml.embedders.base import Embedder, Maps, Progress, TrainingSet, offset_progress
from ml.errors import TooFewPairs
from ml.metric_learning.linear_embedding import get_width, norms, require_linear_map
from ml.metric_learning.logistic.learner import descend
from ml.metric_learning.logistic.maps import LocalMaps, iterate_members
from ml.metric_learning.logistic.options import BatchOptions, GateOptions, LocalMapOptions, MapOptions
from ml.metric_learning.logistic.trainer import LogisticTrainer
from ml.metric_learning.subspace import Subspace
from ml.metric_learning.tensors import as_arrays, as_tensor
from ml.options import option, option_group
from ml.types import Rows

GATE_AXES = 64
ROWS_PER_CHUNK = 1024
HELD_OUT_FOR_K = 0.2
"""Share of the people held out to choose k, if `held_out` is 0."""


@dataclass
class Clml(Embedder):
    """z = sum_s q_s (L_s x + b_s), with q_s = p(s | x) of a Gaussian mixture that stays fixed (equations 3 to 5).

    The fit begins with `first_steps` batches of LDML. Each L_s starts from its map, each b_s from 0, and `steps` more
    batches minimise the same loss. If people are held out, the number of steps that is best for them is kept, which
    may be 0.
    """

    dim: int = option(128, "numbers of an embedding", low=1, unit="numbers")
    steps: int = option(300, "batches of the fit of the local maps", low=1, unit="steps")
    held_out: float = option(0.0, "share of people held out to choose the best number of steps", low=0, high=1)
    unit: bool = option(True, "divide each z by its norm")
    device: str = option("auto", "auto, cpu or cuda", server_only=True)
    batches: BatchOptions = option_group(BatchOptions)
    map: MapOptions = option_group(MapOptions)
    k: int = option(16, "number of local maps", low=1, unit="maps")
    ks: tuple[int, ...] = option((), "numbers of local maps from which held-out people choose one", unit="maps")
    first_steps: int = option(300, "batches of the fit of the first, linear map", low=0, unit="steps", formerly="first")
    mixture: GateOptions = option_group(GateOptions)
    local: LocalMapOptions = option_group(LocalMapOptions)

    @property
    def width(self) -> int | None:
        return get_width(self.learned)

    def start_from(self, model: Embedder) -> Self:
        """Start from one linear map, or from the mean of another CLML's local maps. Local maps are fitted anew."""
        if isinstance(model, Clml) and model.learned:
            maps, offsets = model.learned["projection"], model.learned["offset"]
            projection = maps.reshape(-1, model.dim, maps.shape[1]).mean(0)
            offset = offsets.reshape(-1, model.dim).mean(0)
        else:
            projection, offset = require_linear_map(self, model)
        self.learned = {"projection": projection, "offset": offset}
        self.start_model, self.dim, self.map = model, len(projection), replace(self.map, start="learned")
        return self

    def refit_options(self) -> dict[str, Any]:
        return super().refit_options() | ({"k": self.notes["k"], "ks": ()} if self.ks and self.notes else {})

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if self.ks:
            self._fit_each_k(data, progress)
        else:
            self._fit_one(data, progress)

    def _fit_each_k(self, data: TrainingSet, progress: Progress) -> None:
        """Choose k by held-out people. Then fit to everybody, or keep the chosen fit if `held_out` is above 0."""
        fits = len(self.ks) + (self.held_out == 0)
        trials = {k: self._fit_trial(data, k, _scale_progress(progress, i, fits)) for i, k in enumerate(self.ks)}
        best = max(trials, key=lambda k: trials[k].notes["held_out"] or 0.0)
        chosen = trials[best]
        if self.held_out == 0:
            chosen = self.with_options(**chosen.refit_options() | {"k": best, "ks": ()})
            chosen.learned = self.learned
            chosen.fit(data, progress=_scale_progress(progress, fits - 1, fits))
        held_out = {str(k): trial.notes["held_out"] for k, trial in trials.items()}
        self.learned, self.tasks = chosen.learned, chosen.tasks
        self.notes = chosen.notes | {"k": best, "held_out_by_k": held_out}

    def _fit_trial(self, data: TrainingSet, k: int, progress: Progress) -> "Clml":
        trial = self.with_options(k=k, ks=(), held_out=self.held_out or HELD_OUT_FOR_K)
        trial.learned = self.learned
        return trial.fit(data, progress=progress)

    def _fit_one(self, data: TrainingSet, progress: Progress) -> None:
        trainer = LogisticTrainer(self, data)
        task, total = trainer.data.task, self.first_steps + self.steps
        self.tasks = (task.task,)
        if len(task.faces) < self.k:
            raise TooFewPairs("faces", self.k, len(task.faces))
        first = trainer.fit_linear(self.first_steps, offset_progress(0, total, progress), early_stopping=False)
        projection, bias = first.map.projection, first.bias
        if self.local.rescale or self.map.spherical:
            projection, bias = trainer.rescale(projection)
        known = trainer.data.known
        gate = projection if self.mixture.gate == "ldml" else _select_leading_axes(known)
        mixture = fit_mixture(known @ gate.T, self.k, self.seed)
        q = mixture.assign(trainer.data.coordinates @ gate.T, self.mixture.threshold, self.mixture.soften)
        offset_size = float((known @ projection.T).std(0).mean())
        pull = self.local.pull * trainer.data.mean_squared_norm
        local = LocalMaps(projection, q, first.map.shrink, pull, self.local.anchor, offset_size)
        schedule = trainer.make_schedule(self.steps, self.local.local_rate)
        rest = offset_progress(self.first_steps, total, progress)
        bias, outcome = descend(trainer.data, local, trainer.batches, bias, schedule, rest)
        self.learned = _export(local, gate, mixture, trainer.data.subspace, bias)
        self.notes = outcome.notes

    def assignments(self, rows: Rows) -> Rows:
        """Return the shares q of (N, D) rows in the local maps: (N, k), mostly 0; each row sums to 1."""
        gate, offset, *mixture = (
            as_tensor(self.learned[n]) for n in ("gate", "gate_offset", "means", "variances", "log_weights")
        )
        inside = torch.addmm(-offset, as_tensor(rows), gate.T)
        q: Rows = Mixture(*mixture).assign(inside, self.mixture.threshold, self.mixture.soften).numpy()
        return q

    def _embed(self, rows: Rows, task: str) -> Rows:
        z = self._combine(rows)
        return z / norms(z)[:, None] if self.unit else z

    def _combine(self, rows: Rows) -> Rows:
        """Return the sum of the local maps of (N, D) rows, (N, dim), before it is divided by its norm."""
        maps = as_tensor(self.learned["projection"]).view(-1, self.dim, rows.shape[1])
        offsets = as_tensor(self.learned["offset"]).view(-1, self.dim)
        z = np.empty((len(rows), self.dim), np.float32)
        for start in range(0, len(rows), ROWS_PER_CHUNK):
            chunk = rows[start : start + ROWS_PER_CHUNK]
            x, q = as_tensor(chunk), as_tensor(self.assignments(chunk))
            sums = -q @ offsets
            for s, members in iterate_members(q):
                faces = x if len(members) == len(x) else x[members]
                sums.index_add_(0, members, q[members, s, None] * (faces @ maps[s].T))
            z[start : start + ROWS_PER_CHUNK] = sums.numpy()
        return z

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        projections = self.learned["projection"].reshape(-1, self.dim, rows.shape[1])
        offsets, shares = self.learned["offset"].reshape(-1, self.dim), self.assignments(rows)
        if self.unit:
            shares = shares / norms(self._combine(rows))[:, None]
        return Maps(rows, projections, offsets, shares)


def _export(
    local: LocalMaps, gate: Tensor, mixture: Mixture, subspace: Subspace, bias: float
) -> dict[str, np.ndarray[Any, Any]]:
    maps, outer_gate = subspace.lift(local.maps), subspace.lift(gate)
    kept = {
        "projection": maps.flatten(0, 1),
        "offset": (maps @ subspace.mean - local.offsets).flatten(),
        "gate": outer_gate,
        "gate_offset": outer_gate @ subspace.mean,
        "means": mixture.means,
        "variances": mixture.variances,
        "log_weights": mixture.log_weights,
        "bias": torch.tensor(bias),
    }
    return as_arrays(kept)


def _scale_progress(progress: Progress, number: int, fits: int) -> Progress:
    """Report one of several fits of the same length as progress of all of them."""
    return lambda step, steps, values: progress(number * steps + step, fits * steps, values)


def _select_leading_axes(known: Tensor) -> Tensor:
    """Return the map to the leading principal axes, which are the first coordinates: (g, r)."""
    return torch.eye(min(GATE_AXES, known.shape[1]), known.shape[1], device=known.device)
