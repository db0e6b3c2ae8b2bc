"""Write down what a deletion erases, before the rows are deleted. A job then erases everything else."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session, undefer

from app.db.id_lists import select_ids
from app.db.subject_ids import list_spellings
from app.db.tables import Collection, Embedding, Erasure, Face, FaceCoordinates, Label, Subject
from app.db.visibility import ALL_ROWS
from app.queue.jobs import enqueue
from app.queue.messages import Erase
from app.queue.moments import find_latest_moment
from app.storage.fingerprints import MAX_BYTES

MAX_FINGERPRINTED_FACES = 1_000
"""Faces of one erasure whose bytes a scan can recognise later."""
MAX_FINGERPRINTED_TEXTS = 20_000
MAX_FINGERPRINTED_CHARACTERS = 4 * MAX_BYTES
"""Of each text. In every form of Unicode, so many make more bytes than a fingerprint is of."""
NAMES_PER_BATCH = TEXTS_PER_BATCH = 1_000
VECTOR_BYTES = 64
"""Of each embedding, its first bytes are kept until they are fingerprinted."""
ERASED = "(erased)"
"""Replaces what is erased in a text that stays."""
MERGED = "merged"
"""The target that lists the subjects that were merged into the one that is erased: see `Subject.merged_subjects`."""
IS_ENROLLED = "is_enrolled"
"""Of a merged subject: whether there was a subject of its id when the other was erased. Earlier versions did not note
it."""
EXTERNAL_ID = "external_id"
"""The target that is the external id of the subject, or None."""
BEGUN_AT = "begun_at"
"""The target that says when the job of the erasure began, as seconds since 1970."""
SERVED_BY = "served_by"
"""The target that lists the processes that served a collection when it was deleted, and have not dropped it since:
process -> its last sign of life by then, as seconds since 1970."""
PENDING, SCRUBBED, FINAL = "pending", "scrubbed", "final"
"""The states of an erasure, in their order."""


def record_erasure(
    session: Session,
    collection: Collection,
    target: str,
    chosen: tuple[ColumnElement[bool], ...],
    subject: Subject | None = None,
) -> tuple[Erasure, str]:
    """Write down the faces of a locked collection that meet these conditions, before they are deleted.

    target: face, subject or collection; subject: the one that is deleted with them
    The collection's change must be raised already. Returns the row, and the id of the job that completes the erasure.
    """
    stored_at = session.scalar(select(func.max(Face.created_at)).where(*chosen))
    made_at = None if subject is None else subject.created_at
    erasure, job = start_erasure(session, collection, target, chosen, stored_at, made_at)
    erasure.targets, erasure.contents = describe_erased(session, erasure, chosen, subject)
    session.flush()
    return erasure, job


def start_erasure(
    session: Session,
    collection: Collection,
    target: str,
    chosen: tuple[ColumnElement[bool], ...],
    *stored_at: float | None,
) -> tuple[Erasure, str]:
    """Like `record_erasure`, but name and count nothing yet: this can take a second.

    stored_at: times at which rows were stored that are to be erased
    """
    extremes = select(func.min(Face.change), func.max(Face.change), func.min(Face.created_at)).where(*chosen)
    first_change, last_change, first_created_at = session.execute(extremes).one()
    erasure = Erasure(
        collection_id=collection.id,
        collection_created_at=collection.created_at,
        target=target,
        change=collection.change,
        first_change=collection.change if first_change is None else first_change,
        targets={
            "faces": [],
            "subject": None,
            "names": [],
            "copied_from": collection.copied_from,
            "first_created_at": first_created_at,
            "last_change": collection.change if last_change is None else last_change,
            "until": find_latest_moment(session, collection.created_at, *stored_at),
        },
    )
    session.add(erasure)
    session.flush()
    message = Erase(collection=collection.id, whole=target == "collection", erasure=erasure.id)
    return erasure, enqueue(session, message).id


def read_until(erasure: Erasure) -> float:
    """Return up to when rows were stored that belong to what is erased: see `find_latest_moment`."""
    return float(erasure.targets.get("until", erasure.requested_at))


def read_jobs_until(erasure: Erasure) -> float:
    """Return up to when jobs began that may have read what is erased: see `find_commit_bound`."""
    return max(read_until(erasure), float(erasure.targets.get(BEGUN_AT, 0.0)))


def find_commit_bound(session: Session, erasure: Erasure) -> float:
    """Return a moment by which a deletion was committed, for the target `begun_at` of its erasure.

    On PostgreSQL, jobs can begin and read the rows after `until`, while the deletion is carried out. What belongs to a
    later collection of the same name lies after this moment.
    """
    name, created_at = erasure.collection_id, erasure.collection_created_at
    later = [
        session.scalar(select(func.min(column)).where(of_name, column > created_at), execution_options=ALL_ROWS)
        for column, of_name in (
            (Collection.created_at, Collection.id == name),
            (Erasure.collection_created_at, Erasure.collection_id == name),
        )
    ]
    bounds = [math.nextafter(at, -math.inf) for at in later if at is not None]
    return min([find_latest_moment(session), *bounds])


def strike_out(session: Session, process: str, collections: Set[tuple[str, float]]) -> None:
    """Have the erasures of deleted collections wait no longer for a process, which has dropped them.

    collections: their names, and when they were made
    """
    deletions = select(Erasure).where(
        Erasure.collection_id.in_({name for name, _ in collections}),
        Erasure.target == "collection",
        Erasure.state == PENDING,
    )
    for row in session.scalars(deletions.order_by(Erasure.id).with_for_update()):
        served_by = row.targets.get(SERVED_BY, {})
        if (row.collection_id, row.collection_created_at) in collections and process in served_by:
            left = {name: seen_at for name, seen_at in served_by.items() if name != process}
            row.targets = row.targets | {SERVED_BY: left}


def describe_erased(
    session: Session, erasure: Erasure, chosen: tuple[ColumnElement[bool], ...], subject: Subject | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is erased with the faces that meet these conditions: in plain, and how many rows of each kind."""
    is_whole = erasure.target == "collection"
    faces = session.scalars(_select_fingerprinted(chosen)).all()
    people = [subject] if subject else _read_subjects(session, faces) if is_whole else []
    targets = (
        erasure.targets
        | _list_ids(session, erasure.target, chosen)
        | {
            "files": [[face.image_id, face.number] for face in faces],
            "subject": subject.id if subject else None,
            "subject_pk": subject.pk if subject else None,
            EXTERNAL_ID: subject.external_id if subject else None,
            MERGED: _list_merged(session, subject) if subject else [],
            "names": sorted(list_names(session, erasure.collection_id, chosen, is_whole) | _name_subject(subject)),
            "texts": _list_texts(session, faces, people),
            "vectors": _read_vector_starts(session, faces),
        }
    )
    return targets, {"removed": _count_rows(session, chosen)}


def _select_fingerprinted(chosen: tuple[ColumnElement[bool], ...]) -> Select[Face]:
    return select(Face).where(*chosen).order_by(Face.pk).limit(MAX_FINGERPRINTED_FACES)


def _list_ids(session: Session, target: str, chosen: tuple[ColumnElement[bool], ...]) -> dict[str, list[str]]:
    """List the ids of faces and photos; those of a whole collection are too many, and are not needed."""
    if target == "collection":
        return {"faces": [], "images": []}
    rows = session.execute(select(Face.face_id, Face.image_id).where(*chosen).order_by(Face.pk)).all()
    return {"faces": [row.face_id for row in rows], "images": sorted({row.image_id for row in rows})}


def _count_rows(session: Session, chosen: tuple[ColumnElement[bool], ...]) -> dict[str, int]:
    pks = select(Face.pk).where(*chosen)
    counts = {
        "faces": select(func.count()).select_from(Face).where(*chosen),
        "labels": select(func.count()).where(or_(Label.face_a.in_(pks), Label.face_b.in_(pks))),
        "embeddings": select(func.count()).where(Embedding.face_pk.in_(pks)),
        "coordinates": select(func.count()).where(FaceCoordinates.face_pk.in_(pks)),
    }
    return {name: session.scalar(count, execution_options=ALL_ROWS) or 0 for name, count in counts.items()}


def list_names(
    session: Session, collection: str, chosen: tuple[ColumnElement[bool], ...], with_subjects: bool
) -> set[str]:
    """Return the texts by which all faces that meet these conditions are called.

    with_subjects: also those by which the subjects of the collection are called
    """
    of_faces = select(Face.external_image_id).where(*chosen).execution_options(yield_per=NAMES_PER_BATCH)
    names = set(session.scalars(of_faces))
    if with_subjects:
        people = select(Subject.id, Subject.external_id, Subject.merged_subjects)
        people = people.where(Subject.collection_id == collection).execution_options(yield_per=NAMES_PER_BATCH)
        for subject_id, external_id, merged in session.execute(people):
            names.update([subject_id, external_id, *_list_merged_names(merged)])
    return {name for name in names if name}


def _list_merged(session: Session, subject: Subject) -> list[dict[str, Any]]:
    """List who was merged into a subject of a locked collection, and whether the id is that of another subject now."""
    merged = subject.merged_subjects
    if not merged:
        return []
    spellings = sorted({spelling for one in merged for spelling in list_spellings(one["id"])})
    is_other = (Subject.collection_id == subject.collection_id, Subject.pk != subject.pk)
    named = select(Subject.id).where(*is_other, Subject.id.in_(select_ids(session, spellings)))
    enrolled = set(session.scalars(named))
    return [one | {IS_ENROLLED: not enrolled.isdisjoint(list_spellings(one["id"]))} for one in merged]


def _list_merged_names(merged: list[Any]) -> list[str]:
    """List the ids and external ids of merged subjects: see `Subject.merged_subjects`."""
    return [name for one in merged for name in (one["id"], one["external_id"]) if name]


def is_called(merged: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether a merged subject, an entry of `Subject.merged_subjects`, was known by one of these names."""
    spellings = {spelling for name in names for spelling in list_spellings(name)}
    return not spellings.isdisjoint((merged["id"], merged["external_id"]))


def _name_subject(subject: Subject | None) -> set[str]:
    return {name for name in (subject.id, subject.external_id) if name} if subject else set()


def _read_subjects(session: Session, faces: Any) -> list[Subject]:
    pks = {face.subject_pk for face in faces} - {None}
    people = select(Subject).where(Subject.pk.in_(pks)).options(undefer(Subject.merged_subjects))
    return list(session.scalars(people))


def _iterate_names(faces: Any, people: list[Subject]) -> Iterator[str]:
    """Yield the texts by which the faces and people are called."""
    for person in people:
        yield from filter(None, [person.id, person.external_id, *_list_merged_names(person.merged_subjects)])
    yield from filter(None, [face.external_image_id for face in faces])


def _list_texts(session: Session, faces: Any, people: list[Subject]) -> list[str]:
    """List the starts of the texts to be fingerprinted, those by which the faces and people are called first.

    There may be 1,000 with each face, and a row of the erasure that is written anew at each of its steps holds them.
    """
    starts = dict[str, None]()
    for text in _iterate_texts(session, faces, people):
        starts[text[:MAX_FINGERPRINTED_CHARACTERS]] = None
        if len(starts) == MAX_FINGERPRINTED_TEXTS:
            break
    return list(starts)


def _iterate_texts(session: Session, faces: Any, people: list[Subject]) -> Iterator[str]:
    """Yield every text that a client has stored with the faces and people, and the starts of the notes of their labels.

    A face may have any number of labels: of different notes, so many are read as are fingerprinted.
    """
    yield from _iterate_names(faces, people)
    for row in (*faces, *people):
        yield from iterate_strings(row.attributes)
    pks = [face.pk for face in faces]
    start = func.substr(Label.note, 1, MAX_FINGERPRINTED_CHARACTERS)
    notes = select(start).where(or_(Label.face_a.in_(pks), Label.face_b.in_(pks)), Label.note != "")
    notes = notes.distinct().limit(MAX_FINGERPRINTED_TEXTS).execution_options(yield_per=TEXTS_PER_BATCH, **ALL_ROWS)
    with session.scalars(notes) as rows:
        yield from rows


def iterate_strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, the names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from iterate_strings(member)
    elif isinstance(value, list):
        for item in value:
            yield from iterate_strings(item)


def _read_vector_starts(session: Session, faces: Any) -> list[str]:
    vectors = select(Embedding.vector).where(Embedding.face_pk.in_([face.pk for face in faces]))
    return [base64.b64encode(vector[:VECTOR_BYTES]).decode() for vector in session.scalars(vectors)]
