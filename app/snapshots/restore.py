"""Restore a snapshot: the whole service into an empty one, or a collection into a running one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sqlalchemy import Engine, func, or_, select, text, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Job, Key, now
from app.errors import Conflict, Invalid
from app.snapshots.contents import list_selections
from app.snapshots.erasure import refuse_pending_erasures
from app.snapshots.files import BLOBS, MODELS, RECOGNISERS
from app.snapshots.reader import OpenedSnapshot, check_unchanged, open_snapshot, refuse_unfit_rows
from app.snapshots.reservations import LOCK_SECONDS, SERVICE, lock_name
from app.snapshots.rows import Report, Row, insert_rows, list_copied_tables, raise_sequences, read_batches
from app.storage.atomic_write import atomic_write_all
from app.storage.blob_store import Blobs
from app.storage.model_signatures import open_model_signer, sign_models
from app.storage.recognisers.component_files import VOCABULARIES
from app.storage.snapshot_folders import is_kept_folder
from ml.files import hash_bytes, hash_file
from ml.model import MANIFEST, SIGNATURE

FILES_PER_BATCH = 256
RESTORED_JOB = {
    "code": "Interrupted",
    "detail": "the service was restored from a snapshot while this job had not ended; start it again",
    "status": 503,
}


@dataclass(frozen=True)
class Restored:
    """What was restored: the number of faces and of files, and how many unfinished jobs were cancelled.

    working_keys: how many keys are accepted as they were when the snapshot was taken
    """

    faces: int
    files: int
    cancelled_jobs: int = 0
    working_keys: int = 0


def restore_service(database: Engine, home: Path, folder: Path, report: Report) -> Restored:
    """Restore a snapshot of the whole service into a database without collections.

    All rows of the database are replaced, its keys too. A key that the database has as well stays as it is there: it
    may have been revoked or rotated since the snapshot was taken. The files are written first, so that an interrupted
    restore can be repeated. Raises NotFound, Conflict if the database has collections, Invalid, OSError, and Busy if
    something was erased from the snapshot meanwhile.
    """
    with lock_name(home, SERVICE, LOCK_SECONDS), open_snapshot(folder) as opened:
        if opened.manifest.collection is not None:
            raise Invalid(f"{folder} holds one collection; name it with --collection {opened.manifest.collection}")
        is_kept = is_kept_folder(home, folder)
        with reading(database) as session:
            _check_empty(session, is_kept)
        files = restore_files(home, opened.read_files(report), {})
        with writing(database) as session:
            _lock_collections(session)
            _check_empty(session, is_kept)  # again: to write the files takes hours
            present = [dict(row._mapping) for row in session.execute(select(Key.__table__))]
            for table in reversed(list_copied_tables()):
                session.execute(table.delete())
            with refuse_unfit_rows(folder):
                faces = _insert_all(session, opened, report)
            unfinished = update(Job).where(Job.finished_at.is_(None)).values(
                state="cancelled", finished_at=now(), lease_until=None, worker=None, problem=RESTORED_JOB
            )  # fmt: skip
            cancelled = len(session.scalars(unfinished.returning(Job.id)).all())
            raise_sequences(session, opened.manifest.sequences)
            working_keys = _keep_present_keys(session, present)
            check_unchanged(opened)
        return Restored(faces, files, cancelled, working_keys)


def _lock_collections(session: Session) -> None:
    """Keep others from making a collection until the transaction ends. On SQLite, it is the only writer."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"lock table {Collection.__tablename__} in share row exclusive mode"))


def _check_empty(session: Session, is_kept: bool) -> None:
    """Raises Conflict if there are collections, or if something is still to be erased from the snapshot.

    is_kept: whether the service keeps the snapshot in its home
    """
    if is_kept:
        refuse_pending_erasures(session)
    existing = session.scalar(select(Collection.id).limit(1))
    if existing is not None:
        raise Conflict(
            f"the database has collections already ({existing!r}): a whole service is restored into an empty one. Use "
            "an empty home and database, or restore a single collection with --collection"
        )


def _keep_present_keys(session: Session, present: Sequence[Row]) -> int:
    """Give restored keys that were there before the restore what they had. Returns how many others are accepted."""
    ids = [row["id"] for row in present]
    for row in present:
        session.execute(update(Key).where(Key.id == row["id"]).values(row))
    is_working = Key.revoked_at.is_(None), or_(Key.expires_at.is_(None), Key.expires_at > now())
    return session.scalar(select(func.count()).where(Key.id.not_in(ids), *is_working)) or 0


def _insert_all(session: Session, opened: OpenedSnapshot, report: Report) -> int:
    """Insert all rows of a snapshot, and return the number of faces."""
    count = faces = 0
    with Session(opened.rows) as rows:
        for table, statement in list_selections(rows, None):
            for batch in read_batches(rows, statement):
                insert_rows(session.connection(), table, batch)
                count += len(batch)
                faces += len(batch) if table.name == "faces" else 0
                report("rows", count, sum(opened.manifest.rows.values()))
    return faces


def restore_files(home: Path, files: Iterable[tuple[str, bytes]], renamed: dict[str, str]) -> int:
    """Write the files of a snapshot into a home, and return their number. A file that is there already stays.

    The models are signed for this service: the files were compared with the hashes of the snapshot.

    renamed: collection -> its name in this service; others are not restored, unless it is empty
    Raises Conflict if a model, a recogniser or a vocabulary of the same name has other bytes here.
    """
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    count, blobs, models = 0, Blobs(home / "blobs"), set[Path]()
    remaining = iter(files)
    while batch := list(islice(remaining, FILES_PER_BATCH)):
        by_collection: dict[str, list[tuple[str, bytes]]] = {}
        others: list[tuple[str, bytes]] = []
        for path, data in batch:
            kind, _, rest = path.partition("/")
            if kind == BLOBS:
                collection, _, name = rest.partition("/")
                if not renamed or collection in renamed:
                    by_collection.setdefault(renamed.get(collection, collection), []).append((name, data))
            elif kind != MODELS or not rest.endswith(f"/{SIGNATURE}"):  # another service's key made it
                others += [] if _is_there(home, path, data) else [(f"{home}/{path}", data)]
                models |= {(home / path).parent} if kind == MODELS and rest.endswith(f"/{MANIFEST}") else set()
        for collection, own in by_collection.items():
            blobs.put(collection, own)
        atomic_write_all(home, others)
        count += sum(map(len, by_collection.values())) + len(others)
    if models:
        sign_models(models, open_model_signer(home, home / MODELS))
    return count


def _is_there(home: Path, path: str, data: bytes) -> bool:
    """Whether the home has this file of a model. Raises Conflict if it has another, Invalid if the path is unsafe."""
    parts = Path(path).parts
    if parts[0] not in (MODELS, RECOGNISERS, VOCABULARIES) or ".." in parts:
        raise Invalid(f"the snapshot holds a file that does not belong there: {path}")
    existing = home / path
    if not existing.exists():
        return False
    if hash_file(existing) != hash_bytes(data):
        raise Conflict(f"{existing} differs from the file in the snapshot; move it away if the snapshot's is right")
    return True


def select_collection_files(
    opened: OpenedSnapshot, collection: str, names: set[str], report: Report
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of one collection of a snapshot: its photos and crops, its models and what these need.

    names: of the folders of models and of the files of vocabularies; of recognisers, all are yielded
    """
    for path, data in opened.read_files(report):
        kind, name = path.split("/")[:2]
        if (
            kind == RECOGNISERS
            or (kind == BLOBS and name == collection)
            or (kind in (MODELS, VOCABULARIES) and name in names)
        ):
            yield path, data
