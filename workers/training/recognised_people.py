"""Find the people whom a model has learned from in other collections, by other files or other photos of them."""

import numpy as np
from numpy.typing import NDArray

from app.serving.calibration.seen_people import SeenPeople, is_copy
from ml.types import Ids, Rows
from workers.context import JobContext
from workers.embedding import embed_sample
from workers.training.exposure import Exposure


def recognise_people(context: JobContext, exposure: Exposure, task: str, rows: Rows, people: Ids) -> NDArray[np.bool_]:
    """Return (n,) which faces show people whom the measured model recognises in other collections.

    rows: (n, dim) embeddings of the faces by that model; people: (n,) the person of each
    These are all where more than `seen_people.MAX_SEEN_SHARE` of the people would be found if all faces elsewhere were
    compared. Raises Conflict, Interrupted.
    """
    model = exposure.measured_as
    if not exposure.elsewhere:
        return np.zeros(len(rows), np.bool_)
    seen_people = SeenPeople(model, task, rows, people, np.arange(len(rows)))
    for source in exposure.elsewhere:
        context.check()
        faces, embedded = embed_sample(context, model, task, source)
        seen_people.compare(faces, [embedded])
    is_everybody_known = is_copy(seen_people.estimate_share())
    return np.ones(len(rows), np.bool_) if is_everybody_known else seen_people.find()
