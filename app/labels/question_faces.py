"""Read the faces and answers from which questions are chosen: a random sample of a gallery, and faces with labels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.lookups import get_collection
from app.db.tables import Embedding, Face, Subject, now
from app.db.visibility import ALL_ROWS
from app.galleries.label_consensus import LabelConsensus
from app.galleries.retention import may_be_used
from app.labels.collection_consensus import read_collection_consensus
from app.serving import index_builder
from app.storage.embedding_codec import decode_embeddings
from ml.active_learning import PairAnswers
from ml.model import Model
from ml.types import Ids, Rows

SAMPLE_FACES = 4000
"""Random faces among which one request looks for questions; all distances between them are computed."""
MAX_LABELLED_PAIRS = 1000
"""Labelled pairs, drawn at random, whose faces are added to the sample."""
SAMPLE_BYTES = 64 << 20


CurrentNames = dict[int, str | None]
"""The pk of a face that may be used -> the id of its subject, None if it has none."""


class QuestionFaces(NamedTuple):
    """N gallery faces in the order of their pks, and the answered pairs among them.

    pks: (N,); subjects: (N,) pks, -1 for a face without one, which say nothing about now; rows: (N, d) embeddings
    label_count: decided pairs of the whole collection
    """

    pks: Ids
    face_ids: list[str]
    subjects: Ids
    rows: Rows
    answers: PairAnswers
    label_count: int


def read_question_faces(session: Session, champion: Model, collection: str, task: str) -> QuestionFaces:
    """Read at most SAMPLE_FACES random faces and the faces of MAX_LABELLED_PAIRS random labelled pairs.

    If their embeddings would take more than SAMPLE_BYTES, fewer of both.
    """
    row_bytes = 4 * index_builder.find_embedding_size(champion, task)
    max_faces = SAMPLE_BYTES // row_bytes
    consensus = read_collection_consensus(session, [collection], task)
    max_pairs = min(MAX_LABELLED_PAIRS, max_faces // 4)
    some = np.random.default_rng().permutation(len(consensus))[:max_pairs]
    labelled = np.unique(consensus.pairs[some]).tolist()
    count = min(SAMPLE_FACES, max_faces // 2)
    faces = session.execute(_select_faces(champion, collection, task, labelled, count)).all()
    pks = np.array([face[0] for face in faces], np.int64)
    return QuestionFaces(
        pks,
        [face[1] for face in faces],
        np.array([-1 if face[2] is None else face[2] for face in faces], np.int64),
        decode_embeddings([face[3] for face in faces], row_bytes // 4),
        _locate_answers(pks, consensus),
        len(consensus),
    )


def read_current_names(session: Session, collection: str, pks: Sequence[int]) -> CurrentNames:
    """Return the names that those of these gallery faces have now that may be used. Raises NotFound.

    Choosing questions takes seconds, in which people are erased, refuse or are merged, and collections are deleted.
    """
    session.rollback()  # what it has read was read before
    get_collection(session, collection)
    named = select(Face.pk, Subject.id).outerjoin(Subject, Subject.pk == Face.subject_pk)
    named = named.where(Face.pk.in_(select_ids(session, pks)), Face.role == "gallery", may_be_used(now()))
    # they are the collection's; restricted to it, SQLite would read all of its faces
    return dict(session.execute(named, execution_options=ALL_ROWS).all())


def _select_faces(
    champion: Model, collection: str, task: str, labelled: Sequence[int], count: int
) -> Select[int, str, int | None, bytes]:
    """Select the gallery faces with these pks and `count` random ones, of all that may be used."""
    of_champion = (Embedding.face_pk == Face.pk, Embedding.model_id == champion.id, Embedding.task == task)
    # looked up by its whole key: in a join, PostgreSQL may read all embeddings of a new champion for each face
    vector = select(Embedding.vector).where(*of_champion).correlate(Face).scalar_subquery()
    in_gallery = (Face.collection_id == collection, Face.role == "gallery", may_be_used(now()), vector.is_not(None))
    random = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(*in_gallery)
    random = random.order_by(func.random()).limit(count)
    stored = select(Face.pk, Face.face_id, Face.subject_pk, vector)
    stored = stored.outerjoin(Subject, Subject.pk == Face.subject_pk).where(*in_gallery)
    return stored.where(or_(Face.pk.in_(random), Face.pk.in_(labelled))).order_by(Face.pk)


def _locate_answers(pks: Ids, consensus: LabelConsensus) -> PairAnswers:
    """Return the decided pairs whose faces are both among these, as positions in them. pks: (N,), rising"""
    if not len(consensus) or not len(pks):
        return PairAnswers.empty()
    at = np.minimum(np.searchsorted(pks, consensus.pairs), len(pks) - 1)
    is_here = (pks[at] == consensus.pairs).all(axis=1)
    return PairAnswers(at[is_here], consensus.same[is_here])
