"""1:1: do two faces show one person?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from app.db.tables import Collection, Face, Subject
from app.deps.caller import Caller
from app.errors import Invalid, NotFound
from app.search.acceptance import pair_threshold, score_faces
from app.search.asked import VerifyAsked
from app.search.criteria import switched_on
from app.search.desk import Desk, bounding_box, crops
from app.search.places import stored
from app.search.schemas import Verdict
from app.serving.deployments import Serving
from ml.types import Rows

MOST_FACES = 1000


@dataclass(frozen=True, eq=False)
class Enrolled:
    """The faces that a photo is compared with, and where they lie."""

    face_ids: list[str]
    rows: Rows


def verify(desk: Desk, caller: Caller, photos: Sequence[bytes], asked: VerifyAsked) -> Verdict:
    """Two photos, or one and an enrolled face or subject. Raises Invalid, NotFound, Forbidden, Busy, ml.Unreadable."""
    if len(photos) + (asked.face_id is not None) + (asked.subject is not None) != 2:
        raise Invalid("give two photos as `file`, or one and a face_id or a subject")
    collection = _collection(desk, caller, asked)
    with desk.engine.use(collection, asked.task, asked.model) as serving:
        switched_on(desk.session, [serving.task])
        threshold = pair_threshold(serving.facts, asked.fmr)
        faces = [desk.faces(data, aligned=asked.aligned, most=1)[0] for data in photos]
        rows = serving.embed(crops(serving, faces))
        enrolled = _enrolled(desk, serving, asked) if len(photos) == 1 else None
        apart = serving.index.metric.distances(rows[:1], rows[1:] if enrolled is None else enrolled.rows)[0]
        nearest = int(np.argmin(apart))
        [score] = score_faces(serving.facts, apart[nearest : nearest + 1])
        score["passes"] = threshold.accepts(score)
        return Verdict(
            **score,
            bounding_boxes=[bounding_box(face) for face in faces],
            face_id=None if enrolled is None else enrolled.face_ids[nearest],
            model=serving.generation.id,
            index_generation=serving.index_generation,
            task=asked.task,
            calibrated=serving.facts.calibration is not None,
            threshold=threshold.description,
        )


def _collection(desk: Desk, caller: Caller, asked: VerifyAsked) -> str:
    """As named; where it is not, the only one there is. Raises Invalid, Forbidden."""
    if asked.collection is not None:
        caller.check(asked.collection)
        return asked.collection
    chosen = select(Collection.id).limit(2)
    if caller.collections:
        chosen = chosen.where(Collection.id.in_(caller.collections))
    there = desk.session.scalars(chosen).all()
    if len(there) != 1:
        raise Invalid("name the collection whose model and thresholds are to be used: ?collection=")
    return there[0]


def _enrolled(desk: Desk, serving: Serving, asked: VerifyAsked) -> Enrolled:
    collection = serving.served.collection
    chosen = select(Face.pk, Face.face_id).where(Face.collection_id == collection).order_by(Face.pk).limit(MOST_FACES)
    if asked.face_id is not None:
        chosen = chosen.where(Face.face_id == asked.face_id)
    else:
        chosen = chosen.join(Subject, Subject.pk == Face.subject_pk).where(Subject.id == asked.subject)
    found = desk.session.execute(chosen).all()
    if not found:
        named = f"face {asked.face_id!r}" if asked.face_id is not None else f"subject {asked.subject!r} with a face"
        raise NotFound(f"no {named} in collection {collection!r}")
    return Enrolled([face_id for _, face_id in found], stored(desk.session, serving, [pk for pk, _ in found]))
