"""The one training loop: steps, a running loss, progress, scores on held-out people, and the best parameters."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ml.embedders.base import Progress

PROGRESS_REPORTS = 100
"""How often progress is reported in a fit, besides every evaluation."""
MAX_SILENT_SECONDS = 1.0
"""After so long progress is reported anyway: it is where a fit of a billion steps can be stopped."""


class BatchLearner(Protocol):
    """What a loop trains: one fit, or several that are computed together."""

    def step(self, step: int) -> float | Tensor:
        """Learn from one batch. step: 1, 2, ... Returns the loss of the batch before the update, () or (fits,)."""

    def keep(self, improved: Tensor) -> None:
        """Keep a copy of the parameters of these fits as the best so far. improved: (fits,) bool"""


@dataclass(frozen=True, eq=False)
class TrainingOutcome:
    """The result of a training loop, with one value per fit.

    steps: number of steps after which the kept parameters were reached; loss: the running loss at that time, None
        before the first step
    held_out: score of the kept parameters; start: score before the first step; both None without held-out people
    final_loss: the running loss at the end
    """

    steps: list[int]
    loss: list[float | None]
    held_out: list[float | None]
    start: list[float | None]
    final_loss: list[float | None]

    @property
    def notes(self) -> dict[str, Any]:
        """The outcome of a single fit, as an embedder's notes."""
        return {"steps": self.steps[0], "loss": self.loss[0], "held_out": self.held_out[0]}


@dataclass(frozen=True)
class TrainingLoop:
    """Runs a learner and keeps the parameters that score best on held-out people, or the last ones without them.

    evaluations: number of evaluations on held-out people
    evaluates_start: whether the parameters before the first step can be kept as the best
    loss_window: number of steps over which the running loss is averaged
    fits: number of fits that the learner computes together
    """

    steps: int
    evaluations: int = 25
    evaluates_start: bool = False
    loss_window: int = 50
    fits: int = 1

    def run(
        self, learner: BatchLearner, progress: Progress, score: Callable[[], float | Tensor] | None = None
    ) -> TrainingOutcome:
        """Run all steps.

        score: returns the score of the current parameters, () or (fits,); None if nobody is held out
        """
        evaluate_every = max(1, self.steps // self.evaluations)
        report_every = max(1, self.steps // PROGRESS_REPORTS)
        best = _Best(self.fits)
        loss: float | Tensor | None = None
        schedule = ReportSchedule(report_every)
        if score and self.evaluates_start:
            best.offer(learner, 0, None, score())
        for step in range(1, self.steps + 1):
            batch_loss = learner.step(step)
            loss = batch_loss if loss is None else loss + (batch_loss - loss) / min(step, self.loss_window)
            last = step == self.steps
            evaluates = score is not None and (last or step % evaluate_every == 0)
            if score and evaluates:
                best.offer(learner, step, loss, score())
            if last or evaluates or schedule.is_due(step):
                progress(step, self.steps, {"loss": _mean(loss)} | best.report())
        if best.scores is None:
            learner.keep(torch.ones(self.fits, dtype=torch.bool))
            best.steps, best.losses = [self.steps] * self.fits, _values(loss, self.fits)
        return best.outcome(_values(loss, self.fits))


class ReportSchedule:
    """When a loop reports its progress. every: after so many steps, and after MAX_SILENT_SECONDS"""

    def __init__(self, every: int) -> None:
        self.every, self._due_at = every, time.monotonic() + MAX_SILENT_SECONDS

    def is_due(self, step: int) -> bool:
        """Tell whether to report after this step; it counts as reported then."""
        if step % self.every and time.monotonic() < self._due_at:
            return False
        self._due_at = time.monotonic() + MAX_SILENT_SECONDS
        return True


@dataclass(eq=False)
class _Best:
    """Keeps track of the best score of each fit."""

    fits: int
    scores: Tensor | None = None
    start: Tensor | None = None
    latest: Tensor | None = None
    steps: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)

    def offer(self, learner: BatchLearner, step: int, loss: float | Tensor | None, score: float | Tensor) -> None:
        """Make the learner keep the parameters of the fits whose score has improved."""
        self.latest = torch.as_tensor(score, dtype=torch.float64).reshape(-1)
        if self.scores is None:
            improved = torch.ones(self.fits, dtype=torch.bool)
            self.scores, self.start = self.latest.clone(), self.latest.clone() if step == 0 else None
            self.steps, self.losses = [step] * self.fits, _values(loss, self.fits)
        else:
            improved = self.latest > self.scores
            self.scores = torch.where(improved, self.latest, self.scores)
        if not bool(improved.any()):
            return
        learner.keep(improved)
        for fit, value in enumerate(_values(loss, self.fits)):
            if improved[fit]:
                self.steps[fit], self.losses[fit] = step, value

    def report(self) -> dict[str, float]:
        return {} if self.latest is None else {"held_out": _mean(self.latest)}

    def outcome(self, final_loss: list[float | None]) -> TrainingOutcome:
        scores, start = (_values(score, self.fits) for score in (self.scores, self.start))
        return TrainingOutcome(self.steps, self.losses, scores, start, final_loss)


def averaging_pace(step: int, averaging: float) -> float:
    """Return the share by which a running average moves towards the parameters after this step.

    averaging: near 1, the average follows slowly; at 0 it equals the parameters. In the first steps it follows faster.
    """
    return 1 - min(averaging, step / (step + 9))


def _mean(value: float | Tensor | None) -> float:
    return float(value.mean()) if isinstance(value, Tensor) else float("nan") if value is None else value


def _values(value: float | Tensor | None, fits: int) -> list[float | None]:
    if value is None:
        return [None] * fits
    numbers: list[float | None] = value.tolist() if isinstance(value, Tensor) and value.ndim else [float(value)] * fits
    return numbers
