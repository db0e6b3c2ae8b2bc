"""Learn from batches of pairs of several tasks in turn: the loop around Algorithm 1 of CP-mtML (002)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite

import numpy as np
from torch import Tensor

from ml.embedders.base import Progress
from ml.errors import NotFinite
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.pairs import PairCycle, PairSet
from ml.metric_learning.training_loop import TrainingLoop, TrainingOutcome, averaging_pace

MIN_RATE_FACTOR = 1e-3
"""A fit that diverges restarts at half the rate, down to this share of the original rate."""
EVALUATIONS, LOSS_WINDOW = 20, 100


@dataclass(frozen=True)
class HingeSchedule:
    """steps: batches, of `batch` pairs of one task each; the tasks take turns

    averaging: how slowly the averaged copy, which is kept, follows (0: the last step is kept, as printed)
    pull: share of the way back to the start that every step takes
    """

    steps: int
    batch: int
    rates: Rates
    averaging: float
    pull: float = 0.0


class HingeLearner:
    """Steps projections by batches of pairs. `start` is not changed; `best` is the copy that was kept."""

    def __init__(
        self,
        rows: Tensor,
        pair_sets: list[PairSet],
        schedule: HingeSchedule,
        start: Projections,
        rng: np.random.Generator,
    ) -> None:
        self.rows, self.pair_sets, self.schedule, self.start = rows, pair_sets, schedule, start
        self.live, self.averaged, self.best = start.clone(), start.clone(), start
        counts = [len(pairs.sign) for pairs in pair_sets]
        self.cycles = [PairCycle(count, min(schedule.batch, count), rng) for count in counts]

    def step(self, step: int) -> float:
        """Learn from one batch. See `BatchLearner.step`. Raises FloatingPointError if the fit diverges."""
        task, schedule = (step - 1) % len(self.pair_sets), self.schedule
        batch = self.pair_sets[task].select(self.cycles[task].draw())
        loss = self.live.step(task, self.rows, batch.pairs, batch.sign, batch.weight, schedule.rates)
        if not isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {step}")
        if schedule.pull:
            self.live.move_towards(self.start, schedule.pull)
        self.averaged.move_towards(self.live, averaging_pace(step, schedule.averaging))
        return loss

    def keep(self, improved: Tensor) -> None:
        """Keep the parameters of these (fits,) as the best so far. See `BatchLearner.keep`.

        Raises FloatingPointError if they are not finite: the last step may diverge without any later loss to show it.
        """
        if not self.averaged.is_finite:
            raise FloatingPointError("a projection is not finite")
        self.best = self.averaged.clone()


def descend_safely(
    make_learner: Callable[[float], HingeLearner],
    steps: int,
    progress: Progress,
    score: Callable[[Projections], float] | None,
) -> tuple[Projections, TrainingOutcome]:
    """Fit projections; whenever the fit diverges, restart it at half the rate.

    make_learner: makes a learner at a share of the original rate; score: scores projections on held-out people
    Raises NotFinite if the fit diverges at every rate.
    """
    report, factor = _only_forward(progress), 1.0
    loop = TrainingLoop(steps, EVALUATIONS, evaluates_start=True, loss_window=LOSS_WINDOW)
    while True:
        learner = make_learner(factor)
        try:
            outcome = loop.run(learner, report, None if score is None else partial(_score_averaged, learner, score))
        except FloatingPointError:
            if factor < MIN_RATE_FACTOR:
                raise NotFinite(f"what was learned at {factor:g} of the rate") from None
            factor /= 2
        else:
            return learner.best, outcome


def _score_averaged(learner: HingeLearner, score: Callable[[Projections], float]) -> float:
    return score(learner.averaged)


def _only_forward(progress: Progress) -> Progress:
    """Return a progress function that does not go backwards while a restarted fit catches up."""
    furthest = 0

    def report(step: int, steps: int, values: dict[str, float]) -> None:
        nonlocal furthest
        furthest = max(furthest, step)
        progress(furthest, steps, values)

    return report
