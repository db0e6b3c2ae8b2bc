"""Read enrolled faces by the pks that an index returns: their names, embeddings, templates and crops."""

import base64
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids, select_ids_parameter
from app.db.immediate import require_session
from app.db.lookups import get_face
from app.db.statement_limits import StatementTooSlow, limit_statements, wait_for_turn
from app.db.tables import Collection, Embedding, Face, Subject, now
from app.errors import Busy, Invalid, NotFound
from app.galleries.retention import may_be_used
from app.search.filters import Filter
from app.serving.deployments import ServedModel
from app.serving.faces.face_table import FaceTable
from app.serving.faces.found_faces import EnrolledFace, FoundFaces
from app.serving.loaded_index import LoadedIndex
from app.storage.blob_store import Blobs
from app.storage.embedding_codec import decode_embeddings
from ml.identification.templates import BYTES_PER_DIM, PersonTemplate
from ml.types import CropKind, Ids, Rows

MAX_ROWS_PER_QUERY = 10_000
MAX_FILTER_SECONDS = 10.0
MAX_IMMEDIATE_FACES = 500
"""That a search compares, or averages, on the event loop beside those that the index found: a millisecond or two."""
ROWS_PER_BLOCK = 1024
"""Of 512 numbers, blocks take a twentieth of the time of 40,000 rows at once, which leave the processor's cache."""
MAX_CACHED_TEMPLATE_BYTES = 64 * 2**20
PhotoFace = tuple[str, int]
"""The id of a photo, and the number of a face in it."""
FACES, SUBJECTS = Face.__table__.c, Subject.__table__.c  # plain columns: thousands of rows need no ORM objects
SHOWN_COLUMNS = select(
    FACES.pk, FACES.face_id, FACES.role, FACES.subject_pk, SUBJECTS.id, SUBJECTS.external_id
).select_from(Face.__table__.outerjoin(Subject.__table__, SUBJECTS.pk == FACES.subject_pk))
FACES_QUERIES = {
    dialect: SHOWN_COLUMNS.where(FACES.pk.in_(select_ids_parameter(dialect, "pks")), may_be_used(bindparam("now")))
    for dialect in ("sqlite", "postgresql")
}


def read_faces(session: Session | None, table: FaceTable | None, pks: Ids) -> FoundFaces:
    """Return those of (n,) pks that are still enrolled and may be found: see `may_be_used`. Raises DatabaseNeeded.

    pks: -1 stands for no face; table: where they are in memory, None if they must be read from the database
    """
    if table is not None:
        return table.read(pks, now())
    return FoundFaces.of(pks, query_faces(require_session(session), np.unique(pks[pks >= 0]).tolist()))


def query_faces(session: Session, pks: Sequence[int]) -> dict[int, EnrolledFace]:
    """Return pk -> face of those that may be found, by the database.

    The pks come from the index of one collection. A filter by the collection would make SQLite scan all of it.
    """
    faces: dict[int, EnrolledFace] = {}
    query = FACES_QUERIES[session.get_bind().dialect.name]
    for start in range(0, len(pks), MAX_ROWS_PER_QUERY):
        values = {"pks": pks[start : start + MAX_ROWS_PER_QUERY], "now": now()}
        rows = session.connection().execute(query, values).all()
        faces.update((row[0], EnrolledFace._make(row)) for row in rows)
    return faces


def filter_faces(session: Session | None, collection: str, wanted: Filter | None) -> Ids | None:
    """Return the pks of the faces that the filter allows; None means all.

    Raises DatabaseNeeded, Busy if too many filters are evaluated, Invalid if it takes too long.
    """
    if wanted is None:
        return None
    session = require_session(session)
    chosen = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(Face.collection_id == collection)
    chosen = chosen.where(*wanted.clauses(session.get_bind().dialect.name))
    try:
        with wait_for_turn(session), limit_statements(session, MAX_FILTER_SECONDS):
            return np.array(session.scalars(chosen).all(), np.int64)
    except StatementTooSlow as error:
        raise Invalid(
            f"the filter takes more than {MAX_FILTER_SECONDS:.0f} seconds in this collection: state fewer conditions "
            "on metadata, or keep less metadata with each face"
        ) from error


def get_usable_face(session: Session, collection: str, face_id: str) -> EnrolledFace:
    """Return the face. Raises NotFound, also if its person may not be searched for any more."""
    face = get_face(session, collection, face_id)
    enrolled = query_faces(session, [face.pk]).get(face.pk)
    if enrolled is None:
        raise NotFound(
            f"face {face_id!r} in collection {collection!r} is not used any more: its person has refused consent, or "
            "is not retained"
        )
    return enrolled


def read_embeddings(session: Session, served: ServedModel, pks: Sequence[int]) -> dict[int, Rows]:
    """Return pk -> (dim,) embedding of the faces that have one for this model and task, corrected for its source."""
    key = served.loaded_index.key
    chosen = select(Embedding.face_pk, Embedding.vector, Face.source).join(Face, Face.pk == Embedding.face_pk)
    chosen = chosen.where(Embedding.model_id == key.model_id, Embedding.task == key.task)
    embeddings: dict[int, Rows] = {}
    for start in range(0, len(pks), MAX_ROWS_PER_QUERY):
        part = select_ids(session, pks[start : start + MAX_ROWS_PER_QUERY])
        rows = session.execute(chosen.where(Embedding.face_pk.in_(part))).all()
        vectors = decode_embeddings([row.vector for row in rows], served.index.dim)
        vectors = served.correct(vectors, [row.source for row in rows])
        embeddings.update(zip((row.face_pk for row in rows), vectors, strict=True))
    return embeddings


def get_embeddings(session: Session, served: ServedModel, pks: Sequence[int]) -> Rows:
    """Return the (n, dim) stored embeddings of these faces. Raises Busy if one has none yet."""
    embeddings = read_embeddings(session, served, pks)
    if len(embeddings) < len(set(pks)):
        raise Busy(f"the face is not embedded yet for model {served.loaded_index.key.model_id}; try again shortly")
    return np.stack([embeddings[pk] for pk in pks]) if pks else np.empty((0, served.index.dim), np.float32)


def read_templates(
    session: Session | None, served: ServedModel, people: Sequence[int], excluded: int | None
) -> dict[int, PersonTemplate]:
    """Return person -> template of the person's gallery faces in the index, those joined by labels included.

    Raises DatabaseNeeded.

    people: numbers of people with a name, see `LabelConstraints`
    excluded: the pk of a face to leave out; these templates are not cached
    """
    index, constraints = served.loaded_index, served.deployment.constraints
    cached = index.person_templates
    may_cache = excluded is None and not constraints.left_out  # those who are left out may be joined in the cached ones
    templates = {person: cached[person] for person in people if person in cached} if may_cache else {}
    if len(templates) == len(people):
        return templates
    missing = [person for person in people if person not in templates]
    check_immediate(session, _count_faces(served, missing))
    may_cache = may_cache and _is_at_the_change_of(session, served)
    owners = {owner: person for person in missing for owner in constraints.members.get(person, (person,))}
    faces: dict[int, list[int]] = {}
    for owner, pk in _read_faces_of(session, served, list(owners)):
        if pk != excluded:
            faces.setdefault(owners[owner], []).append(pk)
    templates |= _make_templates(index, faces)
    if may_cache:
        if len(cached) * BYTES_PER_DIM * index.dim > MAX_CACHED_TEMPLATE_BYTES:
            cached = index.person_templates = {}
        cached.update(templates)
    return templates


def check_immediate(session: Session | None, faces: int) -> None:
    """Check that so many rows may be read again without a session. Raises DatabaseNeeded."""
    if faces > MAX_IMMEDIATE_FACES:
        require_session(session)


def _count_faces(served: ServedModel, people: Sequence[int]) -> int:
    """Return how many faces these people have at most, of those in memory: to list them may take long."""
    table, members = served.faces, served.deployment.constraints.members
    if table is None:
        return 0
    owners = [members.get(person, (person,)) for person in people]
    faces = sum(map(len, owners))
    if faces > MAX_IMMEDIATE_FACES:
        return faces
    return sum(1 if owner % 2 else table.count_faces_of(owner // 2) for of_person in owners for owner in of_person)


def _make_templates(index: LoadedIndex, faces: Mapping[int, Sequence[int]]) -> dict[int, PersonTemplate]:
    """Return person -> template, of those with a face in the index. faces: person -> pks"""
    pks = [pk for of_person in faces.values() for pk in of_person]
    if len(pks) <= MAX_IMMEDIATE_FACES:
        rows = read_indexed_rows(index, np.array(pks, np.int64))
        parts = {person: [rows[pk] for pk in of_person if pk in rows] for person, of_person in faces.items()}
        return {person: PersonTemplate.from_rows(np.stack(own)) for person, own in parts.items() if own}
    templates = {}
    for person, of_person in faces.items():
        blocks = index.iterate_rows(np.array(of_person, np.int64), ROWS_PER_BLOCK)
        of_blocks = [PersonTemplate.from_rows(rows) for _, rows in blocks if len(rows)]
        if of_blocks:
            templates[person] = reduce(PersonTemplate.merged_with, of_blocks)
    return templates


def _read_faces_of(session: Session | None, served: ServedModel, owners: Sequence[int]) -> list[tuple[int, int]]:
    """Return (owner, pk) of the gallery faces of these owners."""
    subjects = [owner // 2 for owner in owners if owner % 2 == 0]
    if served.faces is not None:
        named = [(2 * subject, pk) for subject in subjects for pk in served.faces.list_gallery_faces(subject)]
    else:
        session = require_session(session)
        named_here = Face.subject_pk.in_(select_ids(session, subjects))
        rows = session.execute(select(Face.subject_pk, Face.pk).where(named_here, Face.role != "distractor"))
        named = [(2 * subject, pk) for subject, pk in rows if subject is not None]
    return named + [(owner, owner // 2) for owner in owners if owner % 2]


def _is_at_the_change_of(session: Session | None, served: ServedModel) -> bool:
    """Whether the faces are read as they were when index and labels were last updated.

    Those of an earlier change may lack faces of the index: a template of them would be kept too long.
    """
    if served.faces is not None:
        change: int | None = served.faces.change
    else:
        chosen = select(Collection.change).where(Collection.id == served.deployment.collection)
        change = require_session(session).scalar(chosen)
    return change == served.change == served.loaded_index.state.change


def read_indexed_rows(index: LoadedIndex, pks: Ids) -> dict[int, Rows]:
    """Return pk -> (dim,) row of the faces in the index, which may lag behind the tables."""
    held, rows = index.read_rows(pks)
    return dict(zip(held.tolist(), rows, strict=True))


def find_photo_faces(session: Session | None, pks: Sequence[int]) -> dict[int, PhotoFace]:
    """Return pk -> the face's photo and its number in it. Raises DatabaseNeeded."""
    chosen = select(FACES.pk, FACES.image_id, FACES.number).where(FACES.pk.in_(pks))
    return {pk: (image_id, number) for pk, image_id, number in require_session(session).connection().execute(chosen)}


def read_crop(blobs: Blobs, collection: str, photo_face: PhotoFace | None, kind: CropKind) -> str | None:
    """Return the stored crop as base64 PNG; None if the face or its file is missing."""
    if photo_face is None:
        return None
    try:
        return base64.b64encode(blobs.get(collection, Blobs.crop(*photo_face, kind))).decode()
    except NotFound:
        return None
