"""Searches by photo, by enrolled face and by vector: one generation for the whole of each."""

import numpy as np

from app.errors import Invalid
from app.search import naming
from app.search.acceptance import AcceptanceThreshold, pair_threshold, person_threshold
from app.search.asked import Asked, PhotoAsked
from app.search.criteria import Criteria
from app.search.desk import Desk, bounding_box, crops
from app.search.explaining import crops_of, kinds_of
from app.search.matching import match
from app.search.places import stored
from app.search.response import Query, build_answer
from app.search.schemas import Answer


def by_photo(desk: Desk, collection: str, data: bytes, asked: PhotoAsked) -> Answer:
    """Raises NotFound, Invalid, Conflict, Busy, ml.Unreadable."""
    most = 1 if asked.face_selection == "largest" else desk.engine.resources.settings.max_faces_per_image
    with desk.use(collection, asked) as criteria:
        threshold = _threshold(criteria, asked)
        faces = desk.faces(data, aligned=asked.aligned, most=most)
        rows = [c.serving.embed(crops(c.serving, faces)) for c in criteria.each]
        hits = match(desk.session, criteria, rows, asked, threshold)
        queries = [Query(bounding_box(f), {kind: crop[None] for kind, crop in f.crops.items()}) for f in faces]
        return build_answer(desk, criteria, asked, threshold, hits, queries)


def by_face(desk: Desk, collection: str, face_id: str, asked: Asked) -> Answer:
    """The face itself is not among its matches. Raises NotFound, Conflict, Busy."""
    with desk.use(collection, asked) as criteria:
        threshold = _threshold(criteria, asked)
        face = naming.face(desk.session, collection, face_id)
        rows = [stored(desk.session, c.serving, [face.pk]) for c in criteria.each]
        hits = match(desk.session, criteria, rows, asked, threshold, excluded=face.pk)
        kinds = kinds_of(criteria) if asked.include else ()
        own = crops_of(desk.engine.resources.blobs, collection, naming.names(desk.session, [face.pk])[face.pk], kinds)
        return build_answer(desk, criteria, asked, threshold, hits, [Query(None, own or None)])


def by_vector(desk: Desk, collection: str, vector: list[float], asked: Asked) -> Answer:
    """Raises NotFound, Invalid, Conflict, Busy."""
    if "explanation" in asked.include:
        raise Invalid("a vector has no crop whose cells could be told; search with a photo or an enrolled face")
    if len(asked.shares) > 1:
        raise Invalid("a vector lies in the space of one task; search with a photo or an enrolled face by several")
    with desk.use(collection, asked) as criteria:
        serving = criteria.first
        threshold = _threshold(criteria, asked)
        if len(vector) != serving.index.dim:
            raise Invalid(
                f"the vector must have {serving.index.dim} numbers, as the embeddings of model "
                f"{serving.generation.id} for {serving.task} have; this one has {len(vector)}",
                needed=serving.index.dim,
            )
        hits = match(desk.session, criteria, [np.array([vector], np.float32)], asked, threshold)
        return build_answer(desk, criteria, asked, threshold, hits, [Query()])


def _threshold(criteria: Criteria, asked: Asked) -> AcceptanceThreshold:
    """What was asked for; else the default rate of strangers named. Raises Conflict."""
    if criteria.mixed:
        return AcceptanceThreshold(None)
    if asked.fmr is not None or asked.threshold is not None:
        return pair_threshold(criteria.facts, asked.fmr, asked.threshold)
    return person_threshold(criteria.facts, asked.fpir, len(criteria.first.index))
