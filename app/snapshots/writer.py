"""Write a snapshot of a running service: its rows at one moment, then the files that they name."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.schema import read_schema_revision
from app.db.session import reading, snapshot
from app.db.tables import Collection, Erasure, Face, ModelRecord, Subject, now
from app.errors import Conflict
from app.galleries.erased_names import ErasedNames
from app.galleries.erasures import PENDING
from app.galleries.subjects import list_merged
from app.snapshots.contents import list_model_folders, list_selections
from app.snapshots.erased_rows import (
    count_rows,
    delete_subjects,
    drop_unnamed_files,
    erase_from_rows,
    iterate_batches,
)
from app.snapshots.files import (
    BLOBS,
    MODELS,
    RECOGNISERS,
    iterate_blobs,
    iterate_others,
    list_blobs,
    list_folder,
    measure_others,
    write_files,
)
from app.snapshots.manifest import FILES, ROWS, SnapshotManifest
from app.snapshots.rows import (
    SNAPSHOT_FILES,
    Report,
    create_rows,
    insert_rows,
    list_copied_tables,
    read_batches,
    read_sequences,
)
from app.storage.blob_store import Blobs
from app.storage.recognisers.component_files import VOCABULARIES, list_vocabularies
from app.storage.snapshot_folders import check_room
from ml.files import hash_file

FILES_PER_REPORT = 500


def write_snapshot(
    database: Engine, home: Path, folder: Path, collection: str | None, report: Report
) -> SnapshotManifest:
    """Write a snapshot into a new or empty folder while the service runs.

    database, home: of the service; collection: the only one to copy; None: the whole service
    A face or subject that is deleted meanwhile is not in it. One that is merged into another meanwhile is, as it was.
    Raises NotFound if there is no such collection, Conflict if the folder is not empty or the disk too small, OSError.
    """
    _reserve(folder)
    at, blobs = now(), Blobs(home / "blobs")
    with create_rows(folder / ROWS) as copied:
        with snapshot(database) as session:
            if collection is not None:
                get_collection(session, collection)
            pending = _list_pending(session, collection)
            counts = _copy_rows(session, copied, collection, report)
            sequences = read_sequences(session)
        erase_from_rows(copied, pending, lambda: None)
        with copied.begin() as connection:
            connection.execute(delete(Erasure).where(Erasure.state == PENDING))  # it states in plain what is erased
        files = _copy_files(copied, blobs, home, folder / FILES, report)
        missing = _list_missing(database, copied)
        if _drop_deleted(database, copied):
            files = drop_unnamed_files(copied, folder / FILES)
        tables = [table for table in list_copied_tables() if table.name in counts]
        counts = count_rows(copied, tables)
    manifest = SnapshotManifest(
        product=_read_version(),
        schema=read_schema_revision(database) or "",
        collection=collection,
        created_at=at,
        rows=counts,
        files=files[0],
        bytes=files[1],
        rows_sha256=hash_file(folder / ROWS),
        sequences=sequences,
        missing=missing,
    )
    manifest.write(folder)
    return manifest


def _reserve(folder: Path) -> None:
    """Make the folder, and the file of its rows, which one of two processes alone can make. Raises Conflict."""
    folder.mkdir(parents=True, exist_ok=True)
    refusal = f"{folder} is not empty; name a new folder for the snapshot"
    if any(folder.iterdir()):
        raise Conflict(refusal)
    try:
        (folder / ROWS).touch(exist_ok=False)
    except FileExistsError as error:
        raise Conflict(refusal) from error


def _copy_rows(session: Session, copied: Engine, collection: str | None, report: Report) -> dict[str, int]:
    """Copy the rows, and return table -> number of rows."""
    counts: dict[str, int] = {}
    for table, statement in list_selections(session, collection):
        counts[table.name] = 0
        with copied.begin() as connection:
            for batch in read_batches(session, statement):
                insert_rows(connection, table, batch)
                counts[table.name] += len(batch)
                report("rows", sum(counts.values()), None)
    return counts


def _copy_files(copied: Engine, blobs: Blobs, home: Path, path: Path, report: Report) -> tuple[int, int]:
    """Copy the files that the rows name, and return their number and total size in bytes."""
    with Session(copied) as session:
        faces: dict[str, set[tuple[str, int]]] = {}
        for collection, image, number in session.execute(select(Face.collection_id, Face.image_id, Face.number)):
            faces.setdefault(collection, set()).add((image, number))
        models = set(session.scalars(select(ModelRecord.id)))
        vocabularies = list_vocabularies(session.scalars(select(ModelRecord.manifest)))
    names = {collection: list_blobs(blobs, collection, own) for collection, own in faces.items()}
    others = dict(_list_others(home, models, vocabularies))
    total = sum(map(len, names.values())) + len(others)
    check_room(path, blobs.measure(names) + measure_others(others))
    count, size, batch = 0, 0, []
    for file in write_files(path, _iterate_files(blobs, names, others)):
        count, size = count + 1, size + file.bytes
        batch.append(vars(file))
        if len(batch) == FILES_PER_REPORT:
            _record_files(copied, batch)
            report("files", count, total)
            batch = []
    _record_files(copied, batch)
    report("files", count, count)
    return count, size


def _list_others(home: Path, models: set[str], vocabularies: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files of models, recognisers and vocabularies: the path in the snapshot, and where each is now.

    vocabularies: name of the file -> path on record, where it may be if this home does not have it
    """
    folders = (f"{MODELS}/{name}" for name in list_model_folders(models))
    for path in chain.from_iterable(list_folder(home / folder) for folder in (*folders, RECOGNISERS)):
        yield path.relative_to(home).as_posix(), path
    for name, recorded in sorted(vocabularies.items()):
        for path in (home / VOCABULARIES / name, recorded):
            with suppress(FileNotFoundError):
                if path.is_file() and f"{hash_file(path)}.safetensors" == name:
                    yield f"{VOCABULARIES}/{name}", path
                    break


def _iterate_files(blobs: Blobs, names: dict[str, list[str]], others: dict[str, Path]) -> Iterator[tuple[str, bytes]]:
    yield from chain.from_iterable(iterate_blobs(blobs, collection, own) for collection, own in names.items())
    yield from iterate_others(others)


def _record_files(copied: Engine, batch: list[dict[str, object]]) -> None:
    if batch:
        with copied.begin() as connection:
            connection.execute(insert(SNAPSHOT_FILES), batch)


def _list_pending(session: Session, collection: str | None) -> list[ErasedNames]:
    """List what is being erased: jobs and reports may still name it."""
    of_collection = [] if collection is None else [Erasure.collection_id == collection]
    pending = select(Erasure).where(Erasure.state == PENDING, *of_collection).execution_options(yield_per=1)
    return [one for erasure in session.scalars(pending) for one in ErasedNames.list_of(erasure)]


def _list_missing(database: Engine, copied: Engine) -> list[str]:
    """List the photos that are missing although their faces are still enrolled."""
    with Session(copied) as session:
        paths = set(session.scalars(select(SNAPSHOT_FILES.c.path).where(SNAPSHOT_FILES.c.path.contains("/photos/"))))
        of_photos = select(Collection.id).where(Collection.external_model.is_(None))
        chosen = select(Face.pk, Face.collection_id, Face.image_id).where(Face.collection_id.in_(of_photos))
        rows = session.execute(chosen).all()
    lost = {pk: path for pk, c, image in rows if (path := f"{BLOBS}/{c}/{Blobs.photo(image)}") not in paths}
    with reading(database) as service:
        enrolled = lost.keys() - _list_deleted(service, Face, lost)
    return sorted({lost[pk] for pk in enrolled})


def _drop_deleted(database: Engine, copied: Engine) -> int:
    """Drop the faces and subjects that were deleted while files were copied, and return their number.

    A subject that was merged into another stays as it was read. Faces of a deleted one that were given to another
    before go to that one, so that they have its consent and its `retain_until`.
    """
    with snapshot(database) as service, Session(copied) as session, session.begin():
        faces = _list_deleted(service, Face, session.scalars(select(Face.pk)))
        missing = _list_deleted(service, Subject, session.scalars(select(Subject.pk)))
        subjects = missing - _list_merged(service, session, missing)
        for pks in iterate_batches(faces):
            session.execute(delete(Face).where(Face.pk.in_(pks)))
        for pks in iterate_batches(subjects):
            _give_faces(service, session, session.scalars(select(Face.pk).where(Face.subject_pk.in_(pks))))
            delete_subjects(session, Subject.pk.in_(pks))
    return len(faces) + len(subjects)


def _list_deleted(service: Session, row: type[Face] | type[Subject], pks: Iterable[int]) -> set[int]:
    """List those of these keys that the service has no row of any more."""
    deleted = set[int]()
    for part in iterate_batches(pks):
        deleted |= set(part) - set(service.scalars(select(row.pk).where(row.pk.in_(part))))
    return deleted


def _list_merged(service: Session, session: Session, pks: Iterable[int]) -> set[int]:
    """List those of these subjects that were merged into one that the service has."""
    columns = select(Subject.pk, Subject.collection_id, Subject.id, Subject.created_at)
    rows = [row for part in iterate_batches(pks) for row in session.execute(columns.where(Subject.pk.in_(part)))]
    merged = {
        (collection, one["id"], one["created_at"])
        for collection in {row.collection_id for row in rows}
        for one in list_merged(service, collection)
    }
    return {row.pk for row in rows if (row.collection_id, row.id, row.created_at) in merged}


def _give_faces(service: Session, session: Session, pks: Iterable[int]) -> None:
    """Give faces of a snapshot to the subjects that they have in the service, if the snapshot has these."""
    for part in iterate_batches(pks):
        given = select(Face.pk, Face.subject_pk).where(Face.pk.in_(part), Face.subject_pk.is_not(None))
        for pk, subject in service.execute(given).all():
            if session.get(Subject, subject) is not None:
                session.execute(update(Face).where(Face.pk == pk).values(subject_pk=subject))


def _read_version() -> str:
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
