"""The descent of CoSiM's networks: Adam with Keras's decay, dropout, and the best of what people held out saw."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.cosim.branches import Branches, dropout, odds
from ml.metric_learning.pairs import Pool
from ml.types import Ids


@dataclass(frozen=True)
class Course:
    """steps: minibatches of `batch` pairs; at minibatch t = 0, 1, ... Adam's step is rate / (1 + decay t), as in Keras;
    dropped: share of the numbers; stay: of a pull stay |W - W_start|^2; looks: how often the people held out are
    asked."""

    steps: int
    batch: int
    rate: float
    decay: float
    dropped: float
    stay: float = 0.0
    looks: int = 30


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of each fit (F,): the step that is kept, the running loss at the end, and what the people held out said of it."""

    steps: list[int]
    loss: list[float]
    held_out: list[float | None]


class Descent:
    """F fits at once, as one batched product.

    x: (n, F, N, r), or (n, 1, N, r) where all fits share it; pools: what each learns from; held: who judges each, by
    the chance that a pair of the same scores above one of not the same (AUC); None: nobody, all steps are taken
    shares: (m, F)
    """

    def __init__(
        self,
        x: Tensor,
        pools: Sequence[Pool],
        held: Sequence[Pool] | None,
        shares: Tensor,
        course: Course,
        seed: int,
    ) -> None:
        self.pools, self.held, self.shares, self.course = pools, held, shares, course
        self.rng = np.random.default_rng((seed, 3))
        self.chance = torch.Generator(x.device).manual_seed(seed)
        self.left = [np.empty(0, np.int64) for _ in pools]
        places = torch.arange(len(pools), device=x.device) % x.shape[1]
        self.offset = (x.shape[2] * places)[:, None]
        self.flat = x.reshape(len(x), -1, x.shape[3])
        self.home: Tensor | None = None

    def run(self, model: Branches, progress: Progress) -> Outcome:
        """The model then has the parameters of each fit's best look."""
        course, fits = self.course, len(self.pools)
        adam = torch.optim.Adam(model.parameters, lr=course.rate, eps=1e-8, fused=True)
        best = [p.clone() for p in model.parameters]
        self.home = best[0].clone() if course.stay else None
        seen = torch.full((fits,), -1.0, dtype=torch.float64) if self.held is None else self._judged(model, self.held)
        at = torch.full((fits,), course.steps if self.held is None else 0)
        loss, every = self.flat.new_zeros(fits), max(1, course.steps // course.looks)
        told: dict[str, float] = {}
        for step in range(1, course.steps + 1):
            adam.param_groups[0]["lr"] = course.rate / (1 + course.decay * (step - 1))
            loss = loss + (self._step(model, adam) - loss) / min(step, 50)
            last = step == course.steps
            look = step % every == 0 or last
            if self.held is not None and look:
                found = self._judged(model, self.held)
                told["held_out"] = float(found.mean())
                better = found > seen
                seen[better], at[better] = found[better], step
                for kept, now in zip(best, model.parameters, strict=True):
                    kept[:, better] = now[:, better]
            if look or step % max(1, course.steps // 100) == 0:
                progress(step, course.steps, {"loss": float(loss.mean())} | told)
        if self.held is not None:
            model.weights, model.bias = best
        return Outcome(at.tolist(), loss.tolist(), [None if s < 0 else s for s in seen.tolist()])

    def _step(self, model: Branches, adam: torch.optim.Adam) -> Tensor:
        drawn = [pool.some(self._next(f)) for f, pool in enumerate(self.pools)]
        pairs, sign, weight = (torch.stack([getattr(d, of) for d in drawn]) for of in ("pairs", "sign", "weight"))
        x = self._of(pairs, self.offset)
        if self.course.dropped:
            x *= dropout(x.shape, self.course.dropped, self.chance, x)
        mean = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        loss, gradients = model.gradients(x, sign, mean, self.shares)
        if self.home is not None:
            gradients[0] += 2 * self.course.stay * (model.weights - self.home)
        for parameter, gradient in zip(model.parameters, gradients, strict=True):
            parameter.grad = gradient
        adam.step()
        return loss

    def _next(self, fit: int) -> Ids:
        """The places of the next pairs of a pool, which is gone through before it repeats."""
        while len(self.left[fit]) < self.course.batch:
            self.left[fit] = np.concatenate([self.left[fit], self.rng.permutation(len(self.pools[fit].sign))])
        chosen, self.left[fit] = np.split(self.left[fit], [self.course.batch])
        return chosen

    def _of(self, pairs: Tensor, offset: Tensor) -> Tensor:
        """(F, B, 2) -> (n, F, 2B, r): the first images, then the second."""
        ends = pairs.mT.flatten(1) + offset
        return self.flat.index_select(1, ends.flatten()).view(len(self.flat), *ends.shape, -1)

    def _judged(self, model: Branches, held: Sequence[Pool]) -> Tensor:
        said = []
        for f, pool in enumerate(held):
            one = Branches(model.weights[:, f : f + 1], model.bias[:, f : f + 1], model.together)
            z = one.logits(self._of(pool.pairs[None], self.offset[f]))
            said.append(rightly_ordered(odds(z, self.shares[:, f : f + 1])[0], pool.sign))
        return torch.tensor(said, dtype=torch.float64)


def rightly_ordered(scores: Tensor, sign: Tensor) -> float:
    """The chance that a pair of the same scores above one that is not, ties counting half (AUC). Both (P,)."""
    same, other = scores[sign > 0], scores[sign <= 0].sort().values
    below, upto = (torch.searchsorted(other, same, right=right).double().mean() for right in (False, True))
    return float(below + upto) / 2 / len(other)
