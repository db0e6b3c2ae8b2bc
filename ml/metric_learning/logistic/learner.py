"""Adam over batches of pairs, with an averaged copy of the parameters and a look at people held out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.batches import Batch, Batches
from ml.metric_learning.tensors import logistic
from ml.types import Ids

Watch = Callable[[], float]
"""How good the averaged parameters are on people held out; higher is better."""


class Model(Protocol):
    """A map with parameters, and the gradient of its loss by them."""

    parameters: list[Tensor]
    sizes: list[float]  # what is large for each: its step is relative to it

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        """(B, D) rows, and which faces they are -> (B, d)."""

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        """By each parameter, the regulariser included, from the gradient by z (B, d)."""


@dataclass(frozen=True)
class Course:
    """How to descend.

    steps: batches; rate: Adam's step, as a share of each parameter's size; settle: it falls to zero in the last half
    bias_rate: the same for b; averaging: how slowly the averaged copy follows (0: not averaged)
    radius: the loss is that of z brought to this length; 0: of z as it is
    """

    steps: int
    rate: float
    bias_rate: float = 0.01
    averaging: float = 0.98
    settle: bool = True
    radius: float = 0.0


@dataclass(eq=False)
class Outcome:
    """parameters, bias: the averaged copy at its best step; loss: the running mean at the end."""

    parameters: list[Tensor]
    bias: float
    steps: int
    loss: float
    held_out: float | None = None


class Descent:
    """One fit of a model. After `run`, the model's parameters are the averaged ones of the best step."""

    def __init__(self, model: Model, rows: Tensor, batches: Batches, course: Course, bias: float) -> None:
        self.model, self.rows, self.batches, self.course = model, rows, batches, course
        self.bias = torch.tensor(bias, dtype=rows.dtype, device=rows.device)
        self.averaged = [p.clone() for p in (*model.parameters, self.bias)]
        groups = [{"params": [p], "lr": course.rate * s} for p, s in zip(model.parameters, model.sizes, strict=True)]
        self.adam = torch.optim.Adam([*groups, {"params": [self.bias], "lr": course.bias_rate}], fused=True)

    def run(self, progress: Progress, watch: Watch | None = None, looks: int = 25) -> Outcome:
        """`watch` is asked `looks` times; the best of what it saw is kept. Without it, the last step is."""
        course, live = self.course, [*self.model.parameters, self.bias]
        best: Outcome | None = None
        loss = held_out = float("nan")
        for step in range(1, course.steps + 1):
            now = self._step(step)
            loss = now if step == 1 else loss + (now - loss) / min(step, 50)
            if watch and (step % max(1, course.steps // looks) == 0 or step == course.steps):
                held_out = self._with_averaged(watch)
                if best is None or best.held_out is None or held_out > best.held_out:
                    best = self._outcome(step, loss, held_out)
            if step % max(1, course.steps // 100) == 0 or step == course.steps:
                progress(step, course.steps, {"loss": loss} | ({"held_out": held_out} if watch else {}))
        best = best or self._outcome(course.steps, loss)
        for parameter, found in zip(live, [*best.parameters, torch.tensor(best.bias)], strict=True):
            parameter.copy_(found)
        return best

    def _step(self, step: int) -> float:
        course = self.course
        left = 1 - (step - 1) / course.steps
        for group, size in zip(self.adam.param_groups, self.model.sizes, strict=False):
            group["lr"] = course.rate * size * (min(1.0, 2 * left) if course.settle else 1.0)
        batch = self.batches.draw(self.rows.device, self.rows.dtype)
        rows = self.rows[torch.from_numpy(batch.faces).to(self.rows.device)]
        z = self.model.project(rows, batch.faces)
        loss, by_z, by_bias = on_sphere(z, self.bias, batch, course.radius)
        gradients = self.model.gradients(rows, batch.faces, by_z)
        for parameter, gradient in zip(self.model.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.bias.grad = by_bias
        self.adam.step()
        pace = 1 - min(course.averaging, step / (step + 9))
        torch._foreach_lerp_(self.averaged, [*self.model.parameters, self.bias], pace)
        return loss

    def _with_averaged(self, watch: Watch) -> float:
        live = [p.clone() for p in self.model.parameters]
        for parameter, mean in zip(self.model.parameters, self.averaged, strict=False):
            parameter.copy_(mean)
        seen = watch()
        for parameter, kept in zip(self.model.parameters, live, strict=True):
            parameter.copy_(kept)
        return seen

    def _outcome(self, step: int, loss: float, held_out: float | None = None) -> Outcome:
        *parameters, bias = (p.clone() for p in self.averaged)
        return Outcome(parameters, float(bias), step, loss, held_out)


def on_sphere(z: Tensor, bias: Tensor, batch: Batch, radius: float) -> tuple[float, Tensor, Tensor]:
    """`logistic` of z (B, d) brought to this length, with its gradients by z as it was and by the bias."""
    if not radius:
        return logistic(z, bias, batch.sign, batch.weight)
    share = radius / z.norm(dim=1, keepdim=True).clamp_min(1e-12)
    loss, by_z, by_bias = logistic(share * z, bias, batch.sign, batch.weight)
    outward = (by_z * z).sum(1, keepdim=True) * (share / radius).square() * z
    return loss, share * (by_z - outward), by_bias
