"""Coordinated local metric learning: local maps that meet in one space (003)."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ml.clustering.gaussian_mixture import Mixture, fit_mixture
from ml.embedders._descent import Outcome
from ml.embedders._lesson import Lesson
from ml.embedders._maps import Local, members
from ml.embedders._pairs import tensor
from ml.embedders._projected import norms
from ml.embedders._space import Space
from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.embedders.ldml import Ldml
from ml.errors import TooFewPairs
from ml.types import Rows

GATE_AXES = 64
CHUNK = 1024
INNER = 0.2


@dataclass
class Clml(Ldml):
    """z = sum_s q_s (L_s x + b_s), with q_s = p(s | x) of a Gaussian mixture that stays as it is (equations 3 to 5).

    Starts from an LDML fit of `first` steps by the inherited options: each L_s from its map, each b_s from 0. Then
    `steps` batches more of the same loss (none of it at all where nothing is gained: see `held_out`).

    k: local maps; ks: numbers of them to choose from, by people held out (a fifth where `held_out` is 0)
    gate: the mixture lives in the LDML space, or in the leading 64 principal axes of the descriptor
    threshold: a q_s is lessened by so much, cut at 0 and q made to sum to 1 again; soften: divides ln p(s | x)
    local_rate: `rate` of these steps; pull: of each L_s towards their mean; anchor: of each b_s towards 0 (shrink: the
    paper's norm, on both)
    rescale: the local maps begin at the scale, and b, where the first map's loss is least anew, not at those it ended
    with. It knows the people learned from better; without it, and with an anchor of 0.1, strangers are known better.
    A `spherical` first map has no scale and is always given one
    """

    steps: int = 300
    k: int = 16
    ks: tuple[int, ...] = ()
    first: int = 300
    gate: Literal["ldml", "descriptor"] = "ldml"
    threshold: float = 1e-3
    soften: float = 1.0
    local_rate: float = 0.005
    pull: float = 5e-6
    anchor: float = 1e-3
    rescale: bool = True

    def _common(self, before: Embedder) -> tuple[Rows, Rows]:
        """One linear map, or what another CLML's maps have in common: local parts are learned anew."""
        if isinstance(before, Clml) and before.learned:
            maps, offsets = before.learned["projection"], before.learned["offset"]
            return maps.reshape(-1, before.dim, maps.shape[1]).mean(0), offsets.reshape(-1, before.dim).mean(0)
        return super()._common(before)

    def chosen(self) -> dict[str, Any]:
        return super().chosen() | ({"k": self.notes["k"], "ks": ()} if self.ks and self.notes else {})

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        if not self.ks:
            super()._fit(data, progress)
            return
        fits = len(self.ks) + (self.held_out == 0)
        trials = {k: self._trial(data, k, _part(progress, i, fits)) for i, k in enumerate(self.ks)}
        best = max(trials, key=lambda k: trials[k].notes["held_out"] or 0.0)
        found = trials[best]
        if self.held_out == 0:
            found = replace(self, **found.chosen() | {"k": best, "ks": ()})
            found.learned = self.learned
            found.fit(data, progress=_part(progress, fits - 1, fits))
        held_out = {str(k): trial.notes["held_out"] for k, trial in trials.items()}
        self.learned, self.tasks = found.learned, found.tasks
        self.notes = found.notes | {"k": best, "held_out_by_k": held_out}

    def _trial(self, data: TrainingSet, k: int, progress: Progress) -> "Clml":
        trial = replace(self, k=k, ks=(), held_out=self.held_out or INNER)
        trial.learned = self.learned
        return trial.fit(data, progress=progress)

    def _learn(self, lesson: Lesson, progress: Progress) -> None:
        def after(done: int) -> Progress:
            return lambda step, _, values: progress(done + step, self.first + self.steps, values)

        if len(lesson.task.faces) < self.k:
            raise TooFewPairs("faces", self.k, len(lesson.task.faces))
        model, before = self._one_map(lesson, self.first, after(0), looks=False)
        projection, bias = model.projection, before.bias
        if self.rescale or self.spherical:
            projection, bias = lesson.scaled(projection)
        seen = lesson.of(lesson.task.faces)
        gate = projection if self.gate == "ldml" else _leading_axes(seen)
        mixture = fit_mixture(seen @ gate.T, self.k, self.seed)
        q = mixture.assign(lesson.coordinates @ gate.T, self.threshold, self.soften)
        reach = float((seen @ projection.T).std(0).mean())
        local = Local(projection, q, model.shrink, self.pull * lesson.spread, self.anchor, reach)
        found = self._descend(lesson, local, bias, self._course(self.steps, self.local_rate), after(self.first))
        self._keep_local(local, gate, mixture, lesson.space, found)

    def _keep_local(self, local: Local, gate: Tensor, mixture: Mixture, space: Space, found: Outcome) -> None:
        maps, outer = space.outside(local.maps), space.outside(gate)
        kept = {
            "projection": maps.flatten(0, 1),
            "offset": (maps @ space.mean - local.offsets).flatten(),
            "gate": outer,
            "gate_offset": outer @ space.mean,
            "means": mixture.means,
            "variances": mixture.variances,
            "log_weights": mixture.log_weights,
            "bias": torch.tensor(found.bias),
        }
        self.learned = {name: value.cpu().numpy() for name, value in kept.items()}
        self._note(found)

    def assignments(self, rows: Rows) -> Rows:
        """q: (N, D) -> (N, k), sparse, its rows sum to 1."""
        gate, offset, *mixture = (
            tensor(self.learned[n]) for n in ("gate", "gate_offset", "means", "variances", "log_weights")
        )
        inside = torch.addmm(-offset, tensor(rows), gate.T)
        q: Rows = Mixture(*mixture).assign(inside, self.threshold, self.soften).numpy()
        return q

    def _embed(self, rows: Rows, task: str) -> Rows:
        z = self._met(rows)
        return z / norms(z)[:, None] if self.unit else z

    def _met(self, rows: Rows) -> Rows:
        """What the local maps make of them together, (N, dim)."""
        maps = tensor(self.learned["projection"]).view(-1, self.dim, rows.shape[1])
        offsets = tensor(self.learned["offset"]).view(-1, self.dim)
        z = np.empty((len(rows), self.dim), np.float32)
        for at in range(0, len(rows), CHUNK):
            part, q = tensor(rows[at : at + CHUNK]), tensor(self.assignments(rows[at : at + CHUNK]))
            sums = -q @ offsets
            for s, mine in members(q):
                share, faces = q[mine, s, None], part if len(mine) == len(part) else part[mine]
                sums.index_add_(0, mine, share * (faces @ maps[s].T))
            z[at : at + CHUNK] = sums.numpy()
        return z

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        projections = self.learned["projection"].reshape(-1, self.dim, rows.shape[1])
        offsets, shares = self.learned["offset"].reshape(-1, self.dim), self.assignments(rows)
        if self.unit:
            shares = shares / norms(self._met(rows))[:, None]
        return Maps(rows, projections, offsets, shares)


def _part(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of one of several fits of the same length."""
    return lambda step, steps, values: progress(number * steps + step, parts * steps, values)


def _leading_axes(seen: Tensor) -> Tensor:
    """The principal axes come first among the coordinates. Returns (g, r)."""
    return torch.eye(min(GATE_AXES, seen.shape[1]), seen.shape[1], device=seen.device)
