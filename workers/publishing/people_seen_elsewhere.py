"""Leave out of a measurement the people whom a model recognises in other collections that it has learned from."""

from collections.abc import Sequence

import numpy as np

from ml.types import Ids, Rows
from workers.context import JobContext
from workers.publishing.measurable_faces import Mask, MeasurableFaces
from workers.training.exposure import Exposure
from workers.training.recognised_people import recognise_people


def find_people_seen_elsewhere(
    context: JobContext, measurable: MeasurableFaces, task: str, indices: Ids, embedded: Sequence[Rows]
) -> MeasurableFaces:
    """Return the same faces, where each model has also learned from people whom it recognises in other collections.

    indices: (m,) faces to look for, rising; embedded: for each model, (m or more, d), first the embeddings of these
    Raises Conflict, Interrupted.
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
    recognised = recognise_people(context, exposure, task, rows, measurable.data.people[indices])
    seen = np.full_like(measurable.known, len(recognised) > 0 and recognised.all())
    seen[indices] = recognised
    return seen
