"""Descent of an embedding layer on descriptors that stay as they are: triplets, a pull to the start, early stopping."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.layers.base import Layer, optimisers
from ml.losses.triplet import Triplet
from ml.metric_learning.siamese.fit_data import Lesson
from ml.metric_learning.siamese.mining_batches import Batches
from ml.metric_learning.tensors import squared_distances
from ml.mining.semihard import SemiHard
from ml.types import Ids

LOOKS = 20


@dataclass(frozen=True)
class Course:
    """rate, scale_rate: of rSGD-M and of RMSProp, falling to zero over the last half; stay: of the pull, whole."""

    steps: int
    rate: float
    scale_rate: float
    momentum: float
    stay: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """matrix: (r, p) after so many steps; loss: None before any; held_out: what the judges said, None without them."""

    matrix: Tensor
    steps: int
    loss: float | None
    held_out: float | None


@dataclass(eq=False)
class Descent:
    """The loss is equation 12 plus stay * mean over the batch's pairs of (d2 - d2_start)^2 / typical^2, which a
    rotation of the map leaves alone. unit: whether embeddings are judged at unit length.
    """

    layer: Layer
    lesson: Lesson
    unit: bool
    batches: Batches
    miner: SemiHard
    loss: Triplet
    typical: float
    seed: int

    def __post_init__(self) -> None:
        self.home = self.lesson.rows @ self.layer.matrix.detach()
        self.judge = self.lesson.judge(self.unit)
        self.chance = torch.Generator().manual_seed(self.seed)

    def run(self, course: Course, progress: Progress) -> Outcome:
        """The judges are asked LOOKS times, before the first step too. The best is kept, or the start where the
        best is no better than chance may make it.
        """
        optimise = optimisers(self.layer, course.rate, course.momentum, course.scale_rate)
        full = [group["lr"] for o in optimise for group in o.param_groups]
        loss, every = 0.0, max(1, course.steps // LOOKS)
        best = home = self._outcome(0, None)
        for step in range(1, course.steps + 1):
            left = min(1.0, 2 * (1 - (step - 1) / course.steps))
            for group, rate in zip((g for o in optimise for g in o.param_groups), full, strict=True):
                group["lr"] = rate * left
            now = self._step(optimise, course.stay)
            loss = now if step == 1 else loss + (now - loss) / min(step, 50)
            if step == course.steps or (self.judge and step % every == 0):
                here = self._outcome(step, loss)
                if here.held_out is None or best.held_out is None or here.held_out > best.held_out:
                    best = here
            if step % max(1, course.steps // 100) == 0 or step == course.steps:
                progress(step, course.steps, {"loss": loss})
        if best.held_out is None or home.held_out is None:
            return best
        return best if best.held_out > home.held_out + self.lesson.doubt(home.held_out) else home

    def _step(self, optimise: list[torch.optim.Optimizer], stay: float) -> float:
        batch = self.batches.draw(self.home.device)
        d2 = squared_distances(self.layer.embed(self.lesson.of(batch.faces)))
        preferred = batch.told if self.batches.seeds else None
        triplets = self.miner(d2.detach(), batch.alike, batch.apart, self.chance, preferred, self.loss.margin)
        loss = self.loss(d2, triplets, batch.weights(triplets))
        if stay:
            loss = loss + stay * (d2 - squared_distances(self._home_of(batch.faces))).div(self.typical).square().mean()
        for optimiser in optimise:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in optimise:
            optimiser.step()
        return float(loss.detach())

    def _home_of(self, faces: Ids) -> Tensor:
        return self.home[torch.from_numpy(faces).to(self.home.device)]

    def _outcome(self, step: int, loss: float | None) -> Outcome:
        matrix = self.layer.matrix.detach().clone()
        return Outcome(matrix, step, loss, self.judge(matrix) if self.judge else None)
