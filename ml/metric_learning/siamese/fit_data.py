"""What a siamese layer learns from: descriptors of unit length in their principal axes, and people who judge."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ml.embedders.base import TaskData
from ml.metric_learning.holdout import watch
from ml.metric_learning.subspace import Home, Space, principal_space
from ml.types import Ids

SAMPLE = 3000
"""Faces that the principal axes are computed from."""
Judge = Callable[[Tensor], float]
"""What a matrix (r, p) is worth to people held out; higher is better."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """rows: (N, r), all of them in the space; held: the people who judge, None: nobody does."""

    space: Space
    rows: Tensor
    task: TaskData
    held: TaskData | None = None

    def of(self, faces: Ids) -> Tensor:
        return self.rows[torch.from_numpy(faces).to(self.rows.device)]

    @property
    def spread(self) -> float:
        """The mean squared distance between two faces."""
        return max(2 * float(self.of(self.task.faces).var(0, correction=0).sum()), 1e-12)

    def doubt(self, judged: float) -> float:
        """How much better is no more than chance: a quarter of the standard error, as the same people judge both."""
        people = max(1, len(np.unique(self.held.people))) if self.held else 1
        return 0.25 * math.sqrt(max(judged * (1 - judged), 0.0) / people)

    def judge(self, unit: bool) -> Judge | None:
        """unit: whether embeddings are brought to unit length."""
        matrices: list[Tensor] = []

        def embed(faces: Ids) -> Tensor:
            z = self.of(faces) @ matrices[-1]
            return normalize(z) if unit else z

        look = None if self.held is None else watch(embed, self.held)

        def judge(matrix: Tensor) -> float:
            matrices[:] = [matrix]
            return look() if look else 0.0

        return judge if look else None


def unit_space(rows: Tensor, faces: Ids, most: int, seed: int, home: Home | None) -> tuple[Space, Tensor]:
    """The principal axes of rows brought to unit length, and where all of them lie there.

    rows: (N, D); faces: which of them the axes are of; most: r at most; home: a map to go on from.
    Returns the space and (N, r).
    """
    length = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    chosen = torch.from_numpy(np.random.default_rng((seed, 4)).permutation(faces)[:SAMPLE]).to(rows.device)
    some = rows[chosen] / length[chosen]
    space = principal_space(some, np.arange(len(some)), most, seed, home=home)
    origin = space(torch.zeros_like(rows[:1]))
    return space, space(rows).sub_(origin).div_(length).add_(origin)  # of rows / length, without a copy of them
