"""Hold people out of a training: those of its share, less those from whom its start model may have learned."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.db.session import reading
from app.learning.plan import Plan
from workers.context import JobContext
from workers.training.exposure import find_learned_faces, trace_exposure
from workers.training.split import MIN_PEOPLE_PER_SIDE, choose_held_out_faces
from workers.training.training_data import TrainingData


@dataclass(frozen=True, eq=False)
class HeldOutPeople:
    """Who is held out.

    faces: (N,) which faces are theirs
    known_to_start: (N,) which faces are of people who are not held out only since the start model may know them
    """

    faces: NDArray[np.bool_]
    known_to_start: NDArray[np.bool_]


def hold_people_out(context: JobContext, plan: Plan, data: TrainingData) -> HeldOutPeople:
    """Hold out people who are strangers to the fit that is measured, wherever it starts.

    The model that a training continues, or its holdout model, has learned from people too. They cannot be held out any
    more. Nobody is held out where too few are left. Raises NotFound (the model), ml.Corrupt, ml.Unavailable.
    """
    faces = choose_held_out_faces(data, plan.holdout)
    if plan.start_from is None:
        return HeldOutPeople(faces, np.zeros_like(faces))
    with reading(context.resources.database) as session:
        exposure = trace_exposure(session, context.resources.models, plan.start_from, plan.collections)
        known = faces & find_learned_faces(session, exposure, data)
    unknown = faces & ~known
    if len(np.unique(data.people[unknown])) < MIN_PEOPLE_PER_SIDE:
        unknown = np.zeros_like(faces)
    return HeldOutPeople(unknown, known)
