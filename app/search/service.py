"""Search by photo, by enrolled face or by vector, and verify a pair. A request uses one model for each task."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.immediate import DatabaseNeeded, require_session
from app.db.tables import Collection, Face, Subject, now
from app.errors import Invalid, NotFound
from app.galleries.retention import may_be_used
from app.galleries.subjects import get_subject
from app.search import enrolled_faces
from app.search.context import SearchContext, describe_box, embed_faces
from app.search.corrections import describe_correction, find_corrections
from app.search.criteria import Criteria, check_tasks_enabled, choose_threshold
from app.search.decision import AcceptanceThreshold, estimate_rates, make_pair_threshold, score_faces
from app.search.explanation import list_crop_kinds, read_crops
from app.search.matching import SearchHits, find_matches
from app.search.params import MAX_MATCHES, PhotoSearchParams, QuerySearchParams, SearchParams, VerifyParams
from app.search.response import Query, build_answer, collect_included, have_all
from app.search.schemas import Correction, SearchOut, VerifyOut
from app.search.shadow.shadowed_search import queue_comparison
from app.serving.deployments import ServedModel
from app.serving.faces.found_faces import EnrolledFace
from app.storage.audit_log.notes import note_audited
from ml.descriptors.external import External
from ml.types import AlignedFace, Ids, Rows

MAX_COMPARED_FACES = 1000
MAX_INCLUSION_ROUNDS = 2


def search_by_photo(context: SearchContext, collection: str, photo: bytes, params: PhotoSearchParams) -> SearchOut:
    """Search for the largest face of a photo, or for all.

    Raises NotFound, Invalid, PhotoFailed, Conflict, Busy, ml.Unreadable.
    """
    max_faces = min(MAX_MATCHES, context.engine.resources.settings.max_faces_per_image)
    limit = 1 if params.face_selection == "largest" else max_faces
    with context.use_models(collection, params) as criteria:
        criteria.first.model.recipe.check_describes()
        choose_threshold(criteria, params)  # refused before the work on the photo
        faces = context.find_faces(photo, aligned=params.aligned, limit=limit)
        params.check_size(len(faces))
        sources = [params.source] * len(faces)
        embedded = [embed_faces(c.served, faces, sources) for c in criteria.tasks]
        allowed = enrolled_faces.filter_faces(context.session, collection, params.filter)
        criteria = context.renew_all(criteria)
        queries = [Query(describe_box(f), {kind: crop[None] for kind, crop in f.crops.items()}) for f in faces]

        def find(criteria: Criteria, threshold: AcceptanceThreshold) -> SearchHits:
            return find_matches(context, criteria, embedded, params, threshold, allowed)

        return _answer(context, criteria, params, find, queries, faces)


def search_by_face(context: SearchContext, collection: str, face_id: str, params: SearchParams) -> SearchOut:
    """Search for an enrolled face, which is left out of its matches. Raises NotFound, Conflict, Busy."""
    session = require_session(context.session)
    with context.use_models(collection, params) as criteria:
        choose_threshold(criteria, params)  # refused before the work on the filter
        criteria, allowed = _apply_filter(context, criteria, params)
        pk = enrolled_faces.get_usable_face(session, collection, face_id).pk

        def find(criteria: Criteria, threshold: AcceptanceThreshold) -> SearchHits:
            embedded = [enrolled_faces.get_embeddings(session, c.served, [pk]) for c in criteria.tasks]
            return find_matches(context, criteria, embedded, params, threshold, allowed, excluded=pk)

        crops = None
        if params.include:
            photo_face = enrolled_faces.find_photo_faces(session, [pk]).get(pk)
            crops = read_crops(context.blobs, collection, photo_face, list_crop_kinds(criteria))
        answer = _answer(context, criteria, params, find, [Query(None, crops or None)], query_face=pk)
        if params.include:
            enrolled_faces.get_usable_face(session, collection, face_id)  # unless its person has refused meanwhile
        return answer


def search_by_vector(
    context: SearchContext, collection: str, vector: list[float], params: QuerySearchParams
) -> SearchOut:
    """Search for an embedding of the model or, where vectors are imported, for such a vector.

    Raises NotFound, Invalid, Conflict, Busy, DatabaseNeeded if the context has no session and the search is not short.
    """
    with _use_vector_model(context, collection, params) as criteria:
        choose_threshold(criteria, params)  # refused before the work on the filter
        criteria, allowed = _apply_filter(context, criteria, params)
        served = criteria.first
        rows = served.correct(_read_vectors(served, [vector]), [params.source])

        def find(criteria: Criteria, threshold: AcceptanceThreshold) -> SearchHits:
            return find_matches(context, criteria, [rows], params, threshold, allowed)

        return _answer(context, criteria, params, find, [Query()])


def search_by_vectors(
    context: SearchContext, collection: str, vectors: Sequence[list[float]], params: QuerySearchParams
) -> list[SearchOut]:
    """Search with several vectors at once: each answer is what `search_by_vector` would answer.

    Raises the same errors, and DatabaseNeeded if one of them must be searched for alone.
    """
    with _use_vector_model(context, collection, params) as criteria:
        if criteria.shadow_share:
            raise DatabaseNeeded
        threshold = choose_threshold(criteria, params)
        served = criteria.first
        rows = served.correct(_read_vectors(served, vectors), [params.source] * len(vectors))
        hits = find_matches(context, criteria, [rows], params, threshold, None, may_go_on=False)
        if not all(hits.nearest):
            raise DatabaseNeeded  # whether the collection was deleted is asked for each
        whole = build_answer(context, criteria, params, threshold, hits, [Query()] * len(vectors))
        return [
            {**whole, "faces": [face], "fraction": fraction}
            for face, fraction in zip(whole["faces"], hits.fractions, strict=True)
        ]


@contextmanager
def _use_vector_model(context: SearchContext, collection: str, params: QuerySearchParams) -> Iterator[Criteria]:
    """Use the model that a vector is compared by. Raises as `search_by_vector`."""
    if context.session is None and not params.is_short:
        raise DatabaseNeeded
    if "explanation" in params.include:
        raise Invalid("a vector has no crop to explain; search with a photo or an enrolled face")
    if len(params.shares) > 1:
        raise Invalid("a vector belongs to one task; to search by several tasks, use a photo or an enrolled face")
    with context.use_models(collection, params) as criteria:
        model = criteria.first.model
        if context.session is None and model.recipe.external is not None and model.embedder.needs_fit:
            raise DatabaseNeeded  # what embeds the vector may take long
        yield criteria


def _read_vectors(served: ServedModel, vectors: Sequence[list[float]]) -> Rows:
    """Return the (n, dim) embeddings that n vectors are, or that the model makes of imported ones. Raises Invalid."""
    external = served.model.recipe.external
    needed = served.index.dim if external is None else external.dim
    if any(len(vector) != needed for vector in vectors):
        count = next(len(vector) for vector in vectors if len(vector) != needed)
        like = f"the embeddings of model {served.model.id} for {served.task}"
        if external is not None:
            like = f"the vectors that were imported ({external.recogniser})"
        raise Invalid(f"the vector must have {needed} numbers, like {like}; this one has {count}", needed=needed)
    rows = np.array(vectors, np.float32)
    if external is None:
        return rows
    # one by one: a product of matrices may differ in the last bits from that of each row
    return np.concatenate([_embed_imported(served, external, row[None]) for row in rows])


def _embed_imported(served: ServedModel, external: External, row: Rows) -> Rows:
    """Return the (1, dim) embedding of an imported vector, (1, external.dim). Raises Invalid."""
    [fault] = external.find_fault(row)
    if fault is not None:
        raise Invalid(f"the vector cannot be compared by {external.metric}: {fault}")
    return served.model.embed(external.normalise(row), served.task)


def verify_pair(context: SearchContext, photos: Sequence[bytes], params: VerifyParams) -> VerifyOut:
    """Compare two photos, or one photo with an enrolled face or subject.

    Raises Invalid, PhotoFailed, NotFound, Busy, ml.Unreadable.
    """
    if len(photos) + (params.face_id is not None) + (params.subject is not None) != 2:
        raise Invalid("send two photos as `file`, or one photo and a face_id or a subject")
    session = require_session(context.session)
    collection = _choose_collection(session, params)
    note_audited(session, [collection])
    with context.engine.use(collection, params.task, params.model, context.change) as served:
        served.model.recipe.check_describes()
        check_tasks_enabled(session, [served.task])
        faces = [context.find_faces(photo, aligned=params.aligned, limit=1)[0] for photo in photos]
        sources = [params.source, params.second_source][: len(faces)]
        rows = embed_faces(served, faces, sources)
        served = context.renew(served)
        pks, others = _read_enrolled(session, served, params) if len(photos) == 1 else ([], rows[1:])
        threshold = make_pair_threshold(served.scores, params.fmr, faces=len(others))
        distances = served.index.metric.distances(rows[:1], others)[0]
        nearest = int(np.argmin(distances))
        distance = float(distances[nearest])
        [similarity], [probability] = score_faces(served.scores, distances[nearest : nearest + 1])
        [fmr] = estimate_rates(served.scores, distances[nearest : nearest + 1])
        passes = threshold.accepts(distance, similarity, None, is_named=True)
        face_id, corrected_by = None, list[Correction]()
        nearest_pks = np.array(pks[nearest : nearest + 1], np.int64)
        for face in enrolled_faces.read_faces(session, served.faces, nearest_pks).values():
            face_id, corrected_by = face.face_id, _list_corrections(session, served, rows[0], face)
            passes = False if corrected_by else passes
        return VerifyOut(
            distance=distance,
            similarity=similarity,
            probability=probability,
            fmr_estimate=fmr,
            person_distance=None,
            passes=passes,
            bounding_boxes=[describe_box(face) for face in faces],
            face_id=face_id,
            corrected_by=corrected_by,
            model=served.model.id,
            index_generation=served.index_generation,
            task=params.task,
            calibrated=served.scores.calibration is not None,
            threshold=threshold.description,
        )


def _apply_filter(context: SearchContext, criteria: Criteria, params: SearchParams) -> tuple[Criteria, Ids | None]:
    """Return the pks of the faces that the filter allows, None for all, and the models with what is known after it.

    Raises NotFound, DatabaseNeeded, Busy, Invalid.
    """
    if params.filter is None:
        return criteria, None
    allowed = enrolled_faces.filter_faces(context.session, criteria.collection, params.filter)
    return context.renew_all(criteria), allowed


def _answer(
    context: SearchContext,
    criteria: Criteria,
    params: SearchParams,
    find: Callable[[Criteria, AcceptanceThreshold], SearchHits],
    queries: Sequence[Query],
    faces: Sequence[AlignedFace] = (),
    query_face: int | None = None,
) -> SearchOut:
    """Search, and answer. What `include` adds may take seconds: then who is known is looked up once more.

    If others match by then, it is collected once again.

    find: searches with these models, up to a threshold
    """
    threshold = choose_threshold(criteria, params)
    hits, included = find(criteria, threshold), None
    for _ in range(MAX_INCLUSION_ROUNDS if params.include else 0):
        included = collect_included(context, criteria, params, hits, queries)
        criteria = context.renew_all(criteria)
        threshold = choose_threshold(criteria, params)
        hits = find(criteria, threshold)
        if have_all(included, hits):
            break
    _plan_comparison(context, criteria, params, hits, faces=faces, query_face=query_face)
    return build_answer(context, criteria, params, threshold, hits, queries, included)


def _plan_comparison(
    context: SearchContext,
    criteria: Criteria,
    params: SearchParams,
    hits: SearchHits,
    faces: Sequence[AlignedFace] = (),
    query_face: int | None = None,
) -> None:
    """Have the challenger answer the search too, once it has been answered, if it is drawn."""
    if random.random() < criteria.shadow_share:
        compare = partial(queue_comparison, context.engine, criteria, params, hits, faces, query_face)
        context.after_answer.append(compare)


def _choose_collection(session: Session, params: VerifyParams) -> str:
    """Return the collection that was named, or the only one that the caller may use. Raises Invalid."""
    if params.collection is not None:
        return params.collection
    collections = session.scalars(select(Collection.id).where(~Collection.is_deleted).limit(2)).all()
    if len(collections) != 1:
        raise Invalid("name the collection whose model and thresholds to use: ?collection=")
    return collections[0]


def _list_corrections(session: Session, served: ServedModel, query: Rows, face: EnrolledFace) -> list[Correction]:
    """List the label by which a query, (dim,), is not the person of an enrolled face."""
    constraints = served.deployment.constraints
    person = constraints.person(face.owner)
    rejected = find_corrections(session, served, query, {person: face.pk}, None).rejected
    return [describe_correction([constraints], "rejected", label, person) for label in rejected.values()]


def _read_enrolled(session: Session, served: ServedModel, params: VerifyParams) -> tuple[list[int], Rows]:
    """Return the pks and (n, dim) embeddings of the face or of the subject's faces. Raises NotFound, Busy."""
    collection = served.deployment.collection
    chosen = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk)
    chosen = chosen.where(Face.collection_id == collection, may_be_used(now()))
    chosen = chosen.order_by(Face.pk).limit(MAX_COMPARED_FACES)
    if params.face_id is not None:
        chosen = chosen.where(Face.face_id == params.face_id)
    else:
        subject = get_subject(session, collection, params.subject or "")
        chosen = chosen.where(Face.subject_pk == subject.pk)
    pks = list(session.scalars(chosen))
    if not pks:
        missing = (
            f"face {params.face_id!r}" if params.face_id is not None else f"subject {params.subject!r} with a face"
        )
        raise NotFound(f"no {missing} in collection {collection!r}")
    return pks, enrolled_faces.get_embeddings(session, served, pks)
