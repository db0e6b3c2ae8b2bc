"""Find the people whom a model has learned from in other collections, by other files or other photos of them."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import func, select

from app.db.session import reading
from app.db.tables import Face
from app.serving.calibration.seen_people import SeenPeople, is_copy
from ml.types import Ids, Rows
from workers.context import JobContext
from workers.publishing.measurable_faces import Mask, MeasurableFaces
from workers.publishing.reembedding import embed_sample
from workers.training.exposure import Exposure


def find_people_seen_elsewhere(
    context: JobContext, measurable: MeasurableFaces, task: str, indices: Ids, embedded: Sequence[Rows]
) -> MeasurableFaces:
    """Return the same faces, where each model has also learned from people whom it recognises in other collections.

    indices: (m,) faces to look for, rising; embedded: for each model, (m or more, d), first the embeddings of these
    Where more than `seen_people.MAX_SEEN_SHARE` of them would be found if all faces elsewhere were compared, the model
    has learned from everybody. Raises Conflict, Interrupted.
    """
    if not measurable.by_person:
        return measurable
    seen = [
        _find_seen(context, measurable, task, exposure, indices, rows[: len(indices)])
        for exposure, rows in zip(measurable.exposures, embedded, strict=True)
    ]
    return measurable.with_seen(seen)


def _find_seen(
    context: JobContext, measurable: MeasurableFaces, task: str, exposure: Exposure, indices: Ids, rows: Rows
) -> Mask:
    model = exposure.measured_as
    seen = np.zeros_like(measurable.known)
    if not exposure.elsewhere:
        return seen
    seen_people = SeenPeople(model, task, rows, measurable.data.people[indices], np.arange(len(rows)))
    for name in exposure.elsewhere:
        context.check()
        with reading(context.resources.database) as session:
            faces = session.scalar(select(func.count()).where(Face.collection_id == name)) or 0
        seen_people.compare(faces, [embed_sample(context, model, task, name)] if faces else [])
    seen[indices] = seen_people.find()
    return np.ones_like(seen) if is_copy(seen_people.estimate_share()) else seen
