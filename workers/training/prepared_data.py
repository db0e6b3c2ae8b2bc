"""Training data that is split and described: what every fit and every measurement of a training starts from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.learning.plan import Plan
from ml.types import Rows
from workers.training.training_data import TrainingData


@dataclass(frozen=True, eq=False)
class PreparedData:
    """The data of one training.

    plan: with a vocabulary for each descriptor that needs one
    held_out: (N,) whether a face belongs to a held-out person
    rows: (N, D) descriptors of the faces
    known_to_start: (N,) which faces are of people who are not held out only since the start model may know them
    """

    plan: Plan
    data: TrainingData
    held_out: NDArray[np.bool_]
    rows: Rows
    known_to_start: NDArray[np.bool_]
