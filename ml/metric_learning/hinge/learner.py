"""Tasks in turn, a batch each: the loop around Algorithm 1 of CP-mtML (002)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.pairs import Pool
from ml.types import Ids


@dataclass(eq=False)
class Rounds:
    """Batches of `batch` pairs of each task's pool, the tasks in turn; every pool is gone through before it repeats.

    averaging: how slowly the averaged copy, which is what is kept, follows (0: the last step is kept, as printed)
    stay: share of the way back to the start that every step takes
    """

    rows: Tensor
    pools: list[Pool]
    rates: Rates
    batch: int
    averaging: float
    rng: np.random.Generator
    stay: float = 0.0

    def __post_init__(self) -> None:
        self.left = [np.empty(0, np.int64) for _ in self.pools]

    def run(
        self,
        start: Projections,
        steps: int,
        progress: Progress,
        watch: Callable[[Projections], float] | None = None,
        looks: int = 20,
    ) -> tuple[Projections, dict[str, float | int | None]]:
        """From `start`, which is left as it is. `watch` is asked before the first step and `looks` times after, and the
        best of what it saw is kept.

        Returns the projections and notes: steps, the running mean of the hinge, and what `watch` said of them.
        Raises FloatingPointError where the steps are so long that nothing finite is left.
        """
        live, kept, best = start.clone(), start.clone(), start
        loss: float | None = None
        best_seen = seen = watch(start) if watch else None
        notes = {"steps": 0, "loss": loss, "held_out": seen}
        for step in range(1, steps + 1):
            task = (step - 1) % len(self.pools)
            now = self._step(live, task)
            if not isfinite(now):
                raise FloatingPointError(f"the hinge is {now} at step {step}")
            loss = now if loss is None else loss + (now - loss) / min(step, 100)
            if self.stay:
                live.follow(start, self.stay)
            kept.follow(live, 1 - min(self.averaging, step / (step + 9)))
            if watch and (step % max(1, steps // looks) == 0 or step == steps):
                seen = watch(kept)
                if best_seen is None or seen > best_seen:
                    best, best_seen = kept.clone(), seen
                    notes = {"steps": step, "loss": loss, "held_out": seen}
            if step % max(1, steps // 100) == 0 or step == steps:
                progress(step, steps, {"loss": loss} | ({} if seen is None else {"held_out": seen}))
        return (best, notes) if watch else (kept, {"steps": steps, "loss": loss, "held_out": None})

    def _step(self, live: Projections, task: int) -> float:
        some = self.pools[task].some(self._next(task))
        return live.step(task, self.rows, some.pairs, some.sign, some.weight, self.rates)

    def _next(self, task: int) -> Ids:
        while len(self.left[task]) < min(self.batch, len(self.pools[task].sign)):
            again = self.rng.permutation(len(self.pools[task].sign))
            self.left[task] = np.concatenate([self.left[task], again])
        chosen, self.left[task] = np.split(self.left[task], [self.batch])
        return chosen
