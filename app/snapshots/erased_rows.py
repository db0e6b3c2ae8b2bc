"""Delete from the rows of a snapshot what was erased in the service, and the files that no row names any more."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Engine, Table, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.db.tables import Atlas, Collection, Face, FaceCoordinates, Subject
from app.galleries.erased_names import ErasedNames
from app.galleries.erasures import list_names
from app.galleries.measurements import forget_corrections
from app.galleries.protocol_files import scrub_live_evaluations
from app.galleries.scrubbing import scrub_job_items, scrub_reports
from app.galleries.subjects import drop_merged
from app.snapshots.blanks import blank_members
from app.snapshots.files import BLOBS
from app.snapshots.rows import SNAPSHOT_FILES
from app.storage.blob_store import Blobs

VALUES_PER_STATEMENT = 500
Check = Callable[[], None]


def iterate_batches(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the values, sorted, in lists that fit into one statement."""
    remaining = sorted(values)
    for start in range(0, len(remaining), VALUES_PER_STATEMENT):
        yield remaining[start : start + VALUES_PER_STATEMENT]


def count_rows(rows: Engine, tables: Iterable[Table]) -> dict[str, int]:
    """Return table -> number of its rows."""
    with Session(rows) as session:
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


def erase_from_rows(rows: Engine, erased: Sequence[ErasedNames], check: Check) -> set[str]:
    """Delete the faces, subjects and collections of these erasures, and what others, jobs and reports say of them.

    A person may have been called otherwise when the snapshot was taken: the names that the deleted rows have are erased
    too. The deleted bytes stay in the file until it is vacuumed. Returns the ids of the erasures that found something.
    erased: who was merged into an erased subject comes after it
    """
    counts, known, people = Counter[str](), [], defaultdict[str, set[int | None]](set)
    for one in erased:
        check()
        with Session(rows) as session, session.begin():
            if one.is_whole:
                count, names = _delete_collection(session, one)
                known.append(one.add_names(names))
            else:
                names, ids = _delete_people(session, one, people[one.erasure_id])
                known.append(one.add_names(names | ids).add_ids(ids))
                count = len(names | ids) + len(drop_merged(session, one.collection, known[-1].is_merged))
        with Session(rows) as session, session.begin():
            counts[one.erasure_id] += count + scrub_live_evaluations(session, known[-1])
    items = scrub_job_items(rows, known, check, is_snapshot=True)
    reports = scrub_reports(rows, known, is_snapshot=True)
    return {erasure for erasure, count in counts.items() if count + items[erasure] + reports[erasure]}


def _delete_collection(session: Session, erased: ErasedNames) -> tuple[int, set[str]]:
    """Delete a collection with everything in it, unless it was made after the erasure.

    Returns how many were deleted, 1 or 0, and every name of its faces and people.
    """
    collection = session.get(Collection, erased.collection)
    if collection is None or collection.created_at > erased.until:
        return 0, set()
    names = list_names(session, erased.collection, (Face.collection_id == erased.collection,), with_subjects=True)
    session.execute(delete(Face).where(Face.collection_id == erased.collection))
    session.execute(delete(Collection).where(Collection.id == erased.collection))
    return 1, names


def _delete_people(session: Session, erased: ErasedNames, people: set[int | None]) -> tuple[set[str], set[str]]:
    """Delete faces by their ids, and the subject; return the ids and names of the faces, and the ids of the subjects.

    With the subject go others who have lost all their faces by this: they were merged with it since. Atlases by PCA,
    which were fitted to all faces, are emptied, and so are the corrections of sources.
    people: the pks of whose faces this erasure has deleted, to which those of these faces are added
    """
    names, called = set[str | None](), set[str | None]()
    for ids in iterate_batches(erased.faces):
        is_erased = (Face.collection_id == erased.collection, Face.face_id.in_(ids))
        for face in session.scalars(select(Face).where(*is_erased)):
            people.add(face.subject_pk)
            names |= {face.face_id, face.external_image_id}
        session.execute(delete(Face).where(*is_erased))
    _forget_maps(session, erased.collection)
    forget_corrections(session, erased.collection)
    if erased.subject is not None:
        for subject in session.scalars(select(Subject).where(_is_erased_subject(erased, people - {None}))).all():
            called |= {subject.id, subject.external_id}
            delete_subjects(session, Subject.pk == subject.pk)
    return set(filter(None, names)), set(filter(None, called))


def _forget_maps(session: Session, collection: str) -> None:
    """Empty the atlases by PCA, from which erased embeddings could be computed.

    After a restore, a worker draws them anew.
    """
    is_map = (Atlas.collection_id == collection, Atlas.method == "pca")
    on_maps = FaceCoordinates.atlas_pk.in_(select(Atlas.pk).where(*is_map))
    session.execute(delete(FaceCoordinates).where(on_maps))
    session.execute(update(Atlas).where(*is_map).values(projection=b"", fitted_faces=0, change=-1))


def _is_erased_subject(erased: ErasedNames, people: set[int | None]) -> ColumnElement[bool]:
    """Whether a subject goes with this erasure. people: the pks of whose faces it has deleted

    One that was merged is kept if all its faces are left, and there is a subject of its id: they were given back to it.
    """
    has_name, has_lost_faces = Subject.id == erased.subject, Subject.pk.in_(people)
    has_face = select(Face.pk).where(Face.subject_pk == Subject.pk).exists()
    if erased.subject_created_at is None:
        is_same = or_(has_name, has_lost_faces & ~has_face) & (Subject.created_at <= erased.until)
    else:
        is_same = has_name & (Subject.created_at == erased.subject_created_at)
        if erased.is_enrolled:
            is_same &= or_(has_lost_faces, ~has_face)
    return (Subject.collection_id == erased.collection) & is_same


def delete_subjects(session: Session, condition: ColumnElement[bool]) -> None:
    """Delete subjects; their faces, if any are left, lose their name."""
    pks = select(Subject.pk).where(condition)
    options = {"synchronize_session": False}
    session.execute(update(Face).where(Face.subject_pk.in_(pks)).values(subject_pk=None), execution_options=options)
    session.execute(delete(Subject).where(condition), execution_options=options)


def drop_unnamed_files(rows: Engine, tar: Path) -> tuple[int, int]:
    """Drop the photos and crops that no face names: their records, and their bytes in the tar.

    Returns the number and the total size in bytes of the files that are left. Raises OSError, tarfile.TarError.
    """
    with Session(rows) as session, session.begin():
        faces = set(session.execute(select(Face.collection_id, Face.image_id, Face.number)).all())
        owners = {*faces, *((collection, image, None) for collection, image, _ in faces)}
        sizes = {row.path: row.bytes for row in session.execute(select(SNAPSHOT_FILES))}
        unnamed = [path for path in sizes if (owner := _find_owner(path)) is not None and owner not in owners]
        for paths in iterate_batches(unnamed):
            session.execute(delete(SNAPSHOT_FILES).where(SNAPSHOT_FILES.c.path.in_(paths)))
    for path in unnamed:
        del sizes[path]
    blank_members(tar, sizes.keys())
    return len(sizes), sum(sizes.values())


def _find_owner(path: str) -> tuple[str, str, int | None] | None:
    """Return the collection, the photo and the number of the face that a file belongs to; None for other files."""
    kind, _, rest = path.partition("/")
    if kind != BLOBS:
        return None
    collection, _, name = rest.partition("/")
    return (collection, *Blobs.parse_name(name))
