"""A fit without some of the people, who are strangers to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.embedder_training.task_measurement import TaskMeasurement
from ml.embedders.base import Embedder


@dataclass(frozen=True, eq=False)
class HoldoutFit:
    """A fit without the held-out people.

    held_out: (N,) whether each face's person is; measured: task -> the measurement of this fit on the held-out people,
        of those tasks that were measured
    """

    embedder: Embedder
    held_out: NDArray[np.bool_]
    measured: Mapping[str, TaskMeasurement] = field(default_factory=dict)
