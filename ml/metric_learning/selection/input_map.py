"""The linear map that turns descriptors into what the candidates learn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import TrainingSet
from ml.metric_learning.holdout import require_task
from ml.metric_learning.linear_embedding import project
from ml.types import Rows

MAX_INPUT_AXES = 1000
"""A descriptor with more numbers is projected onto so many principal axes, once for all candidates."""
LINEAR_PARTS = (("projection", "offset"), ("gate", "gate_offset"))
"""The arrays of an embedder that apply to its input: a matrix and what is subtracted after it."""


@dataclass(frozen=True, eq=False)
class InputMap:
    """x = projection row - offset. projection: (r, D); offset: (r,)"""

    projection: Rows
    offset: Rows

    def apply(self, rows: Rows) -> Rows:
        """Map (N, D) rows to (N, r)."""
        return project(rows, self.projection, self.offset)

    def precede(self, learned: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of an embedder of (N, r) inputs, changed so that it embeds (N, D) rows in the same way.

        A (L x - o) - b = A L x - (A o + b)
        """
        changed = dict(learned)
        for matrix, offset in LINEAR_PARTS:
            if matrix in learned:
                shape = learned[offset].shape
                moved = learned[matrix] @ self.offset + learned[offset].reshape(-1)
                changed |= {matrix: learned[matrix] @ self.projection, offset: moved.astype(np.float32).reshape(shape)}
        return changed


def fit_input_map(data: TrainingSet, seed: int, device: str) -> InputMap | None:
    """Fit the principal axes of wide descriptors, several of which are weighted alike. None if they are narrow."""
    task = require_task(data)
    if data.rows.shape[1] <= MAX_INPUT_AXES or not len(task.faces):
        return None
    from ml.metric_learning.subspace import fit_subspace  # torch: only where it is fitted
    from ml.metric_learning.tensors import as_tensor, select_device

    rows = as_tensor(data.rows, select_device(device))
    subspace = fit_subspace(rows, task.faces, MAX_INPUT_AXES, seed, widths=data.widths)
    if subspace.axes is None:
        return None
    return InputMap(subspace.axes.cpu().numpy(), (subspace.axes @ subspace.mean).cpu().numpy())
