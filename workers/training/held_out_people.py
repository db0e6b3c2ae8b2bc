"""Hold people out of a training: those of its share, less those from whom its start model may have learned."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from app.db.session import reading
from app.learning.plan import Plan
from ml.types import Ids, Rows
from workers.context import JobContext
from workers.training.exposure import Exposure, find_learned_faces, trace_exposure
from workers.training.recognised_people import recognise_people
from workers.training.split import MIN_PEOPLE_PER_SIDE, choose_held_out_faces
from workers.training.training_data import TrainingData

TASK = "identity"
MAX_OTHER_FACES = 2_000
"""Faces of people who are not held out that are compared too: a few people do not tell how far others are."""


@dataclass(frozen=True, eq=False)
class HeldOutPeople:
    """Who is held out.

    faces: (N,) which faces are theirs
    known_to_start: (N,) which faces are of people who are not held out only since the start model may know them
    learned_before: (N,) which faces are of people from whom the start model has learned, by their photos
    exposure: of the start model, None if the training starts anew
    """

    faces: NDArray[np.bool_]
    known_to_start: NDArray[np.bool_]
    learned_before: NDArray[np.bool_]
    exposure: Exposure | None = None

    def without(self, known: NDArray[np.bool_], people: Ids) -> Self:
        """Return the same without the people of these (N,) faces, or nobody where too few are left.

        people: (N,) number of each face's person
        """
        known = self.faces & np.isin(people, people[known])
        left = self.faces & ~known
        if len(np.unique(people[left])) < MIN_PEOPLE_PER_SIDE:
            left = np.zeros_like(left)
        return replace(self, faces=left, known_to_start=self.known_to_start | known)


def hold_people_out(context: JobContext, plan: Plan, data: TrainingData) -> HeldOutPeople:
    """Hold out people who are strangers to the fit that is measured, wherever it starts.

    The model that a training continues, or its holdout model, has learned from people too. They cannot be held out any
    more. Nobody is held out where too few are left. Raises NotFound (the model), ml.Corrupt, ml.Unavailable.
    """
    faces = choose_held_out_faces(data, plan.holdout)
    nobody = np.zeros_like(faces)
    if plan.start_from is None:
        return HeldOutPeople(faces, nobody, nobody)
    with reading(context.resources.database) as session:
        exposure = trace_exposure(session, context.resources.models, plan.start_from, plan.collections)
        learned = find_learned_faces(session, context.resources.installation_key, exposure, data)
    return HeldOutPeople(faces, nobody, learned, exposure).without(learned, data.people)


def leave_out_recognised(context: JobContext, held_out: HeldOutPeople, data: TrainingData, rows: Rows) -> HeldOutPeople:
    """Return the same without the people whom the start model recognises in other collections that it has learned from.

    rows: (N, D) descriptors of the faces, which are those of the start model. Raises Conflict, Interrupted.
    """
    exposure = held_out.exposure
    if exposure is None or not exposure.elsewhere or not held_out.faces.any():
        return held_out
    if TASK not in exposure.measured_as.tasks:
        return held_out
    compared = held_out.faces.copy()
    compared[np.flatnonzero(~held_out.learned_before & ~held_out.faces)[:MAX_OTHER_FACES]] = True
    embedded = exposure.measured_as.embed(rows, TASK)[compared]
    known = np.zeros_like(compared)
    known[compared] = recognise_people(context, exposure, TASK, embedded, data.people[compared])
    return held_out.without(known, data.people)
