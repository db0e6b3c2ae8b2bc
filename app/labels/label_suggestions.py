"""Suggest the pairs to label next: those about which the serving model is least certain."""

from typing import NamedTuple

import numpy as np
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from app.db.tables import Embedding, Face, Label, Subject
from app.labels.schemas import SuggestedPair, SuggestIn, SuggestionsOut
from app.publishing.pointers import get_deployment
from app.resources import Resources
from app.serving import index_builder
from app.storage.embedding_codec import decode_embeddings
from ml.active_learning import MAX_ANSWERS, SAMPLE_FACES, LabelledDistances, choose_pairs
from ml.calibration import Calibration
from ml.model import Model
from ml.types import Ids, Rows

SAMPLE_BYTES = 64 << 20


class FaceSample(NamedTuple):
    """A random sample of n gallery faces.

    subjects: (n,), -1 for a face without a subject; rows: (n, dim) embeddings
    """

    pks: Ids
    face_ids: list[str]
    subjects: Ids
    subject_ids: list[str | None]
    rows: Rows


def suggest_labels(session: Session, resources: Resources, request: SuggestIn) -> SuggestionsOut:
    """Suggest pairs from a random sample of the gallery, spread over faces and people.

    Raises NotFound if the collection has no model for the task.
    """
    champion = resources.models.get(get_deployment(session, request.collection, request.task).champion)
    faces = _sample_faces(session, champion, request)
    calibration = champion.calibrations.get(request.task)
    is_from_held_out = request.task in champion.provenance.get("by_held_out", ())
    pairs, distances = choose_pairs(
        faces.rows,
        faces.subjects,
        champion.metric,
        calibration if is_from_held_out else None,
        _sample_answers(session, champion, request),
        _find_labelled_pairs(session, request.task, faces),
        request.limit,
    )
    chosen = [_describe_pair(faces, *pair, calibration) for pair in zip(pairs, distances, strict=True)]
    return SuggestionsOut(model=champion.id, pairs=chosen)


def _sample_faces(session: Session, champion: Model, request: SuggestIn) -> FaceSample:
    """Sample at most SAMPLE_FACES faces, and fewer if their embeddings would take more than SAMPLE_BYTES."""
    of_champion = (Embedding.model_id == champion.id, Embedding.task == request.task)
    in_gallery = (Face.collection_id == request.collection, Face.role == "gallery")
    stored = select(Face.pk, Face.face_id, Face.subject_pk, Subject.id, Embedding.vector)
    stored = stored.join(Embedding, Embedding.face_pk == Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk)
    row_bytes = 4 * index_builder.find_embedding_size(champion, request.task)
    pks = select(Face.pk).join(Embedding, Embedding.face_pk == Face.pk).where(*in_gallery, *of_champion)
    pks = pks.order_by(func.random()).limit(min(SAMPLE_FACES, SAMPLE_BYTES // row_bytes))
    faces = session.execute(stored.where(*of_champion, Face.pk.in_(pks)).order_by(Face.pk)).all()
    return FaceSample(
        np.array([face[0] for face in faces], np.int64),
        [face[1] for face in faces],
        np.array([-1 if face[2] is None else face[2] for face in faces], np.int64),
        [face[3] for face in faces],
        decode_embeddings([face[4] for face in faces], row_bytes // 4),
    )


def _find_labelled_pairs(session: Session, task: str, faces: FaceSample) -> set[tuple[int, int]]:
    """Return the pairs of positions in the sample that have a label already, the smaller position first."""
    positions = {int(pk): position for position, pk in enumerate(faces.pks)}
    labels = select(Label.face_a, Label.face_b).where(
        Label.task == task, Label.withdrawn_at.is_(None), Label.face_a.in_(positions), Label.face_b.in_(positions)
    )
    pairs = ((positions[a], positions[b]) for a, b in session.execute(labels))
    return {(min(pair), max(pair)) for pair in pairs}


def _sample_answers(session: Session, champion: Model, request: SuggestIn) -> LabelledDistances:
    """Sample labels of the whole collection, with the distances of their pairs."""
    first, second = aliased(Embedding), aliased(Embedding)
    row_bytes = 4 * index_builder.find_embedding_size(champion, request.task)
    in_force = (Face.collection_id == request.collection, Label.task == request.task, Label.withdrawn_at.is_(None))
    max_labels = min(MAX_ANSWERS, SAMPLE_BYTES // (2 * row_bytes))
    pks = select(Label.pk).join(Face, Face.pk == Label.face_a).where(*in_force)
    pks = pks.order_by(func.random()).limit(max_labels)
    query = select(first.vector, second.vector, Label.same).where(Label.pk.in_(pks))
    for embedding, face in ((first, Label.face_a), (second, Label.face_b)):
        is_of_face = and_(embedding.face_pk == face, embedding.model_id == champion.id, embedding.task == request.task)
        query = query.join(embedding, is_of_face)
    labels = session.execute(query).all()
    rows_a = decode_embeddings([vector for vector, _, _ in labels], row_bytes // 4)
    rows_b = decode_embeddings([vector for _, vector, _ in labels], row_bytes // 4)
    distances = champion.metric.paired_distances(rows_a, rows_b).astype(np.float64)
    return LabelledDistances(distances, np.array([same for _, _, same in labels], np.bool_))


def _describe_pair(
    faces: FaceSample, positions: Ids, distance: np.float32, calibration: Calibration | None
) -> SuggestedPair:
    first, second = (int(position) for position in positions)
    similarity = None
    if calibration is not None:
        similarity = 100 * float(calibration.probability(np.array([distance], np.float64))[0])
    return SuggestedPair(
        face_a=faces.face_ids[first],
        face_b=faces.face_ids[second],
        subject_a=faces.subject_ids[first],
        subject_b=faces.subject_ids[second],
        distance=float(distance),
        similarity=similarity,
    )
