"""The pairs most worth labelling: those of which the serving model is least sure, spread over faces and people."""

from typing import NamedTuple

import numpy as np
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from app.db.tables import Deployment, Embedding, Face, Label, Subject
from app.errors import NotFound
from app.labels.schemas import SuggestedPair, SuggestIn, SuggestionsOut
from app.resources import Resources
from app.serving import index_builder
from ml.active_learning import MAX_ANSWERS, SAMPLE_FACES, LabelledDistances, choose_pairs
from ml.calibration import Calibration
from ml.model import Model
from ml.types import Ids, Rows

SAMPLE_BYTES = 64 << 20


class Sampled(NamedTuple):
    """Faces drawn from the gallery. subject: -1 unknown."""

    pks: Ids
    face_ids: list[str]
    subjects: Ids
    subject_ids: list[str | None]
    rows: Rows


def suggest(session: Session, resources: Resources, wanted: SuggestIn) -> SuggestionsOut:
    """From the embeddings of the champion, of a random sample of the gallery. Raises NotFound."""
    deployment = session.get(Deployment, (wanted.collection, wanted.task))
    if deployment is None:
        raise NotFound(f"collection {wanted.collection!r} has no model for the task {wanted.task!r}")
    champion = resources.generations.get(deployment.champion)
    faces = _sample(session, champion, wanted)
    calibration = champion.calibrations.get(wanted.task)
    unseen = calibration if wanted.task in champion.provenance.get("by_held_out", ()) else None
    labelled, answers = _labelled(session, wanted.task, faces), _answers(session, champion, wanted)
    pairs, distances = choose_pairs(
        faces.rows, faces.subjects, champion.metric, unseen, answers, labelled, wanted.limit
    )
    chosen = [_shown(faces, pair, far, calibration) for pair, far in zip(pairs, distances, strict=True)]
    return SuggestionsOut(model=champion.id, pairs=chosen)


def _sample(session: Session, champion: Model, wanted: SuggestIn) -> Sampled:
    """As many as fit the memory: a wide descriptor gives fewer."""
    here = (Embedding.model_id == champion.id, Embedding.task == wanted.task)
    gallery = (Face.collection_id == wanted.collection, Face.role == "gallery")
    stored = select(Face.pk, Face.face_id, Face.subject_pk, Subject.id, Embedding.vector)
    stored = stored.join(Embedding, Embedding.face_pk == Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk)
    width = 4 * index_builder.embedding_size(champion, wanted.task)
    ids = select(Face.pk).join(Embedding, Embedding.face_pk == Face.pk).where(*gallery, *here)
    drawn = ids.order_by(func.random()).limit(min(SAMPLE_FACES, SAMPLE_BYTES // width))
    found = session.execute(stored.where(*here, Face.pk.in_(drawn)).order_by(Face.pk)).all()
    return Sampled(
        np.array([f[0] for f in found], np.int64),
        [f[1] for f in found],
        np.array([-1 if f[2] is None else f[2] for f in found], np.int64),
        [f[3] for f in found],
        _rows([f[4] for f in found], width),
    )


def _labelled(session: Session, task: str, faces: Sampled) -> set[tuple[int, int]]:
    """Pairs of places in the sample, the smaller first."""
    place = {int(pk): i for i, pk in enumerate(faces.pks)}
    said = select(Label.face_a, Label.face_b).where(
        Label.task == task, Label.withdrawn_at.is_(None), Label.face_a.in_(place), Label.face_b.in_(place)
    )
    return {(min(place[a], place[b]), max(place[a], place[b])) for a, b in session.execute(said)}


def _answers(session: Session, champion: Model, wanted: SuggestIn) -> LabelledDistances:
    """Some of the collection's, wherever in it their faces are."""
    first, second = aliased(Embedding), aliased(Embedding)
    width = 4 * index_builder.embedding_size(champion, wanted.task)
    here = (Face.collection_id == wanted.collection, Label.task == wanted.task, Label.withdrawn_at.is_(None))
    most = min(MAX_ANSWERS, SAMPLE_BYTES // (2 * width))
    some = select(Label.pk).join(Face, Face.pk == Label.face_a).where(*here).order_by(func.random()).limit(most)
    said = select(first.vector, second.vector, Label.same).where(Label.pk.in_(some))
    for end, face in ((first, Label.face_a), (second, Label.face_b)):
        at = (end.face_pk == face, end.model_id == champion.id, end.task == wanted.task)
        said = said.join(end, and_(*at))
    found = session.execute(said).all()
    one, other = _rows([f[0] for f in found], width), _rows([f[1] for f in found], width)
    return LabelledDistances(
        champion.metric.paired_distances(one, other).astype(np.float64), np.array([f[2] for f in found], np.bool_)
    )


def _rows(vectors: list[bytes], width: int) -> Rows:
    """width: of each, in bytes."""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), width // 4)


def _shown(faces: Sampled, pair: Ids, apart: np.float32, calibration: Calibration | None) -> SuggestedPair:
    first, second = (int(i) for i in pair)
    sure = None if calibration is None else 100 * float(calibration.probability(np.array([apart], np.float64))[0])
    return SuggestedPair(
        face_a=faces.face_ids[first],
        face_b=faces.face_ids[second],
        subject_a=faces.subject_ids[first],
        subject_b=faces.subject_ids[second],
        distance=float(apart),
        similarity=sure,
    )
