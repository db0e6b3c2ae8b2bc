"""Restore one collection of a snapshot into a running service, under its name or another."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Column, Engine, Table, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.db.session import check_transaction, reading, writing
from app.db.tables import Collection, Deployment, Face, ModelRecord, Removal, Subject, Task, Training, TrainingPolicy
from app.errors import Busy, Conflict, Invalid, NotFound
from app.queue.jobs import enqueue
from app.queue.messages import Erase
from app.queue.moments import find_creation_moment
from app.snapshots.contents import find_models, list_model_folders, list_selections
from app.snapshots.erasure import has_pending_erasures, is_being_rewritten, refuse_pending_erasures
from app.snapshots.files import BLOBS
from app.snapshots.reader import OpenedSnapshot, check_unchanged, open_snapshot, refuse_unfit_rows
from app.snapshots.reservations import RESERVATION, is_untouched
from app.snapshots.restore import Restored, restore_files, select_collection_files
from app.snapshots.rows import (
    Report,
    Row,
    insert_rows,
    list_numbered_tables,
    read_batches,
    reserve_numbers,
)
from app.storage.blob_store import Blobs
from app.storage.recognisers.component_files import list_vocabularies
from app.storage.snapshot_folders import is_kept_folder

FACES_PER_STATEMENT = 500
FILES_PER_CHECK = 1_000
"""How many files are looked for between two checks of a lock."""
MAX_CHECKS = 5
"""How often a restore looks, at most, whether all of its files are there; what is missing is written again."""
NUMBERED_ELSEWHERE = {(Removal.__tablename__, "face_pk"): Face.__tablename__}
"""Columns that hold the number of a row of another table without a foreign key -> that table."""


@dataclass(frozen=True)
class RestoreOptions:
    """How to restore a collection.

    new_face_ids: whether its faces get other ids, so that it can stand beside the collection that it is a copy of
    finish: is called in the transaction that inserts the rows
    """

    new_face_ids: bool = False
    finish: Callable[[Session, Restored], None] = lambda session, restored: None


def restore_collection(
    database: Engine,
    home: Path,
    folder: Path,
    collection: str,
    name: str,
    report: Report,
    options: RestoreOptions | None = None,
) -> Restored:
    """Restore a collection that does not exist. Its faces get new numbers.

    collection: its id in the snapshot; name: its id from now on
    Its rows are committed with its last file: nobody removes a file that a row names.
    The collection counts as made anew: its models are measured as if they had learned from all who were not held out.
    What people have refused since in the collection of the snapshot, if it exists, holds in the restored one too.
    Raises NotFound if the snapshot has no such collection, Conflict if the name or a face id is in use, if the
    collection was deleted or written to meanwhile, or if something is still to be erased from the snapshot, Invalid,
    and Busy if something was erased from it.
    """
    options, is_kept = options or RestoreOptions(), is_kept_folder(home, folder)
    with open_snapshot(folder) as opened:
        models, vocabularies = _find_models(opened, collection)
        if is_kept:
            _refuse_pending_erasures(database, collection)
        with writing(database) as session:
            _check_free(session, opened, collection, name, options)
            models -= set(session.scalars(select(ModelRecord.id)))
            reserved = Collection(id=name, description=RESERVATION)  # keeps its files from being erased
            session.add(reserved)
            session.flush()
            reserved_at = reserved.created_at
        names, renamed = {*list_model_folders(models), *vocabularies}, {collection: name}
        select_files = partial(_select_files, database, opened, collection, names, report)
        try:
            files = restore_files(home, select_files(), renamed)
            for _ in range(MAX_CHECKS):
                with writing(database) as session:
                    reserved = _lock_reserved(session, name, reserved_at)
                    lost = list_lost_files(opened, home, collection, name, partial(check_transaction, session))
                    if not lost:
                        _release(session, reserved)
                        faces = _insert_collection(session, opened, collection, name, report, options)
                        if is_kept:
                            refuse_pending_erasures(session, collection)
                        restored = Restored(faces, files)
                        options.finish(session, restored)
                        return restored
                restore_files(home, (file for file in select_files() if file[0] in lost), renamed)
            raise Conflict(f"files of the collection {name!r} are removed again and again; restore it later")
        except BaseException:
            _clean_up(database, name, reserved_at)
            raise


def _clean_up(database: Engine, name: str, reserved_at: float) -> None:
    """Free the name, and have the files removed that no row names."""
    with writing(database) as session:
        with suppress(Conflict):  # another collection of this name, or what was written to it, stays
            _release(session, _lock_reserved(session, name, reserved_at))
        enqueue(session, Erase(collection=name, whole=True))


def _find_models(opened: OpenedSnapshot, collection: str) -> tuple[set[str], set[str]]:
    """Return the ids of the models that the collection needs, and the names of their vocabularies.

    Raises NotFound if there is no such collection.
    """
    with Session(opened.rows) as rows:
        if rows.get(Collection, collection) is None:
            held = ", ".join(rows.scalars(select(Collection.id).order_by(Collection.id)))
            raise NotFound(f"{opened.folder} has no collection {collection!r}; it has: {held or 'none'}")
        models = find_models(rows, collection)
        manifests = rows.scalars(select(ModelRecord.manifest).where(ModelRecord.id.in_(models)))
        return models, {*list_vocabularies(manifests)}


def _select_files(
    database: Engine, opened: OpenedSnapshot, collection: str, names: set[str], report: Report
) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the collection, and the models and vocabularies of these names. Raises Invalid, Busy."""
    try:
        yield from select_collection_files(opened, collection, names, report)
    except Invalid:
        check_unchanged(opened)
        if is_being_rewritten(opened.folder) and _has_pending_erasures(database):
            raise Busy("something is being erased from the snapshot; restore it again") from None
        raise


def _has_pending_erasures(database: Engine) -> bool:
    """Whether anything is still to be erased from kept snapshots. If not, nobody rewrites one that looks like it."""
    with reading(database) as session:
        return has_pending_erasures(session)


def _refuse_pending_erasures(database: Engine, collection: str) -> None:
    """Refuse as `refuse_pending_erasures` does, once a deletion that is being carried out is committed."""
    with writing(database) as session:
        session.get(Collection, collection, with_for_update=True)
    with reading(database) as session:
        refuse_pending_erasures(session, collection)


def list_lost_files(
    opened: OpenedSnapshot, home: Path, collection: str, name: str, check_lock: Callable[[], None] = lambda: None
) -> set[str]:
    """Return the paths of a collection's photos and crops that were restored and are no longer there.

    Where the row of the collection is locked, nobody removes any meanwhile. check_lock: is called between many files
    """
    blobs, prefix = Blobs(home / BLOBS), f"{BLOBS}/{collection}/"
    own = [path.removeprefix(prefix) for path in opened.list_files() if path.startswith(prefix)]
    lost = set[str]()
    for start in range(0, len(own), FILES_PER_CHECK):
        check_lock()
        lost |= blobs.list_missing(name, own[start : start + FILES_PER_CHECK])
    return {f"{prefix}{file}" for file in lost}


def _lock_reserved(session: Session, name: str, reserved_at: float) -> Collection:
    """Lock the row that reserves the name. Raises Conflict if it was deleted or written to meanwhile."""
    reserved = session.get(Collection, name, with_for_update=True)
    if reserved is None or reserved.created_at != reserved_at:
        raise Conflict(
            f"the collection {name!r} was deleted during the restore; restore it again if it is still wanted"
        )
    if not is_untouched(session, reserved):
        raise Conflict(
            f"the collection {name!r} was written to during the restore: what was written is kept. Delete the "
            "collection and restore it again, or restore under another name (--as)"
        )
    return reserved


def _release(session: Session, reserved: Collection) -> None:
    """Delete the row that reserves the name. Its lock lasts until the transaction ends."""
    session.delete(reserved)
    session.flush()


def _check_free(session: Session, opened: OpenedSnapshot, collection: str, name: str, options: RestoreOptions) -> None:
    """Raises Conflict if the collection, or one of its faces, exists already."""
    if session.get(Collection, name) is not None:
        raise Conflict(f"the collection {name!r} exists; delete it, or restore under another name with --as")
    if options.new_face_ids:
        return
    with Session(opened.rows) as rows:
        ids = rows.scalars(select(Face.face_id).where(Face.collection_id == collection)).all()
    for i in range(0, len(ids), FACES_PER_STATEMENT):
        part = ids[i : i + FACES_PER_STATEMENT]
        owner = session.scalar(select(Face.collection_id).where(Face.face_id.in_(part)).limit(1))
        if owner is not None:
            raise Conflict(
                f"faces of {collection!r} are enrolled in the collection {owner!r}: face ids are unique, so the same "
                "faces cannot be restored beside them. Delete that collection first, or give new ids (--new-face-ids)"
            )


def _insert_collection(
    session: Session, opened: OpenedSnapshot, collection: str, name: str, report: Report, options: RestoreOptions
) -> int:
    """Insert the rows of a collection, and return the number of its faces. Raises Invalid, Busy."""
    with refuse_unfit_rows(opened.folder):
        faces = _insert_rows(session, opened, collection, name, report, options)
    _keep_refusals(session, collection, name)
    check_unchanged(opened)
    return faces


def _insert_rows(
    session: Session, opened: OpenedSnapshot, collection: str, name: str, report: Report, options: RestoreOptions
) -> int:
    """Insert the rows of a collection, renumbered, and return the number of its faces."""
    created_at = find_creation_moment(session, name)
    count = faces = 0
    with Session(opened.rows) as rows:
        offsets = _reserve_numbers(session, rows, collection)
        for table, statement in list_selections(rows, collection):
            change = _plan_changes(table, name, created_at, offsets, options)
            for batch in read_batches(rows, statement):
                own = _leave_out_known(session, table, [change(row) for row in batch])
                insert_rows(session.connection(), table, own)
                count += len(own)
                faces += len(own) if table.name == Face.__tablename__ else 0
                report("rows", count, None)
    return faces


def _reserve_numbers(session: Session, rows: Session, collection: str) -> dict[str, int]:
    """Reserve numbers for the rows of a collection. Returns table -> what is added to the numbers of its rows."""
    numbers: dict[str, list[int]] = {}
    for table, statement in list_selections(rows, collection):
        own = statement.subquery()
        for column in table.columns:
            if numbered := _find_numbered_table(column):
                extremes = rows.execute(select(func.min(own.c[column.name]), func.max(own.c[column.name]))).one()
                numbers.setdefault(numbered, []).extend(number for number in extremes if number is not None)
    offsets = {}
    for table in list_numbered_tables():
        if of_rows := numbers.get(table.name):
            first = min(of_rows)
            offsets[table.name] = reserve_numbers(session, table, max(of_rows) - first + 1) + 1 - first
    return offsets


def _keep_refusals(session: Session, source: str, restored: str) -> None:
    """Copy refusals of consent, and times of retention that end earlier, to the same subjects of another collection.

    source: locked, if it exists, so that no refusal is recorded, and nothing is deleted, meanwhile
    """
    session.get(Collection, source, with_for_update=True)
    present = aliased(Subject)
    refused = select(present.id).where(present.collection_id == source, present.consent.is_(False))
    until = select(present.retain_until).where(present.collection_id == source, present.id == Subject.id)
    present_end = until.scalar_subquery()
    people = update(Subject).where(Subject.collection_id == restored).execution_options(synchronize_session=False)
    session.execute(people.where(Subject.id.in_(refused)).values(consent=False))
    ends_earlier = or_(Subject.retain_until.is_(None), Subject.retain_until > present_end)
    session.execute(people.where(present_end.is_not(None), ends_earlier).values(retain_until=present_end))


def _plan_changes(
    table: Table, name: str, created_at: float, offsets: dict[str, int], options: RestoreOptions
) -> Callable[[Row], Row]:
    """Return the function that renumbers and renames a row of this table."""
    numbered = {c.name: offsets[of] for c in table.columns if (of := _find_numbered_table(c)) in offsets}
    is_collection, is_deployment = table is Collection.__table__, table is Deployment.__table__
    is_policy = table is TrainingPolicy.__table__
    gets_new_id = options.new_face_ids and table is Face.__table__

    def change(row: Row) -> Row:
        changed: dict[str, Any] = {c: v + numbered[c] if c in numbered and v is not None else v for c, v in row.items()}
        if "collection_id" in changed:
            changed["collection_id"] = name
        if gets_new_id:
            changed["face_id"] = str(uuid4())
        if is_deployment:
            changed["measurements"] = _renumber_last_faces(row["measurements"], offsets.get(Face.__tablename__, 0))
        if is_policy and row["collection_id"] != name:  # its candidate belongs to that collection
            changed["last_training"] = None
        if is_collection:
            sources = [*row["copied_from"], *([row["id"]] if row["id"] != name else ())]
            changed |= {"id": name, "created_at": created_at, "copied_from": list(dict.fromkeys(sources))}
        return changed

    return change


def _renumber_last_faces(measurements: dict[str, dict[str, Any]], added: int) -> dict[str, dict[str, Any]]:
    """Return what was measured of models with the numbers of the restored faces. added: to the number of each"""
    return {
        model: measured | ({"last_face": measured["last_face"] + added} if measured.get("last_face") else {})
        for model, measured in measurements.items()
    }


def _find_numbered_table(column: Column[Any]) -> str | None:
    """Return the name of the table whose rows' numbers are in a column, None if it holds none."""
    table, numbered = column.table, list_numbered_tables()
    if table in numbered and column is table.autoincrement_column:
        return table.name
    for other in numbered:
        if column.references(other.c.pk):
            return other.name
    return NUMBERED_ELSEWHERE.get((table.name, column.name))


def _leave_out_known(session: Session, table: Table, rows: list[Row]) -> list[Row]:
    """Leave out the tasks and models that exist already, and the trainings that a new model refers to."""
    if table is Task.__table__:
        known = set(session.scalars(select(Task.name)))
        return [row for row in rows if row["name"] not in known]
    if table is ModelRecord.__table__:
        known = set(session.scalars(select(ModelRecord.id)))
        trainings = set(session.scalars(select(Training.id)))
        new = [row for row in rows if row["id"] not in known]
        return [row | {"training_id": row["training_id"] if row["training_id"] in trainings else None} for row in new]
    return rows
