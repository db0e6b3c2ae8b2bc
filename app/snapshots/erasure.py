"""Erase faces, subjects and collections from a snapshot on disk.

New rows are written beside the old ones, the erased files are overwritten in the tar, and the manifest that names the
new rows replaces the old one. What is interrupted is done again by the next run. A worker that was paused meanwhile
changes nothing any more if another one has done its work.
"""

import errno
import os
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Engine, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from app.db.schema import read_schema_revision
from app.db.tables import Collection, Erasure, Face
from app.errors import AppError, Busy, Conflict, Invalid
from app.galleries.erased_names import ErasedNames
from app.galleries.erasures import PENDING, read_until
from app.snapshots.erased_rows import Check, count_rows, drop_unnamed_files, erase_from_rows
from app.snapshots.files import BLOBS
from app.snapshots.manifest import FILES, SnapshotManifest
from app.snapshots.reader import copy_rows
from app.snapshots.rows import list_copied_tables, open_rows, raise_unless_damaged, seal_rows
from app.storage.blob_store import Blobs
from app.storage.segments.trash import NFS_PREFIX
from app.storage.snapshot_folders import MANIFEST, delete_folder, delete_path, lock_folder
from ml.files import hash_file

REWRITTEN = "another process has rewritten the snapshot meanwhile"
STILL_ERASING = (
    "something was deleted in the collection of the snapshot, and is still being erased from it: restore it again once "
    "no erasure is pending (GET /v1/erasures), or use POST /v1/snapshots/{snapshot}:restore, which waits"
)


@dataclass(frozen=True)
class SnapshotErasure:
    """What became of a snapshot. erasures: the ids of those that it held something of; manifest: None if deleted"""

    manifest: SnapshotManifest | None
    erasures: set[str] = field(default_factory=set)


def erase_from_snapshot(
    folder: Path, erased: Sequence[ErasedNames], check: Check, check_lease: Check
) -> SnapshotErasure:
    """Erase from a complete snapshot. A snapshot of a deleted collection alone, or one that is damaged, is deleted.

    check_lease: raises what ends the work if another worker has taken it over
    Raises NotFound if the folder holds no complete snapshot, Busy if another process is at it or the disk is full,
    OSError.
    """
    manifest = None
    try:
        manifest = SnapshotManifest.read(folder)
        concerned = [one for one in erased if manifest.collection in (None, one.collection)]
        if not concerned:
            return SnapshotErasure(manifest)
        return _rewrite(folder, manifest, concerned, check, check_lease)
    except (Invalid, DatabaseError, tarfile.TarError, FileNotFoundError) as error:
        _raise_unless_read(error)
        if isinstance(error, FileNotFoundError) and manifest is not None and _has_its_files(folder, manifest):
            raise Busy(REWRITTEN) from error
        if isinstance(error, DatabaseError) and manifest is not None and _holds_its_rows(folder, manifest):
            raise_unless_damaged(error)
        with lock_folder(folder):
            check_lease()
            if manifest is not None:
                _check_unchanged(folder, manifest)  # another process has removed the rows of this one
        return _delete(folder, erased)  # nobody can tell what it holds


def _raise_unless_read(error: Exception) -> None:
    """Raises Busy for an error of a disk that cannot be read now, which says nothing of the snapshot."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno not in (None, errno.ENOENT):
        raise Busy(f"a snapshot cannot be read now: {cause.strerror}") from cause


def _has_its_files(folder: Path, manifest: SnapshotManifest) -> bool:
    return all((folder / name).exists() for name in (FILES, manifest.rows_file))


def is_being_rewritten(folder: Path) -> bool:
    """Whether something is being erased from the snapshot, or an interrupted run has to be done again."""
    return len(list(folder.glob("rows*.sqlite"))) > 1


def _holds_deleted_collection(folder: Path, manifest: SnapshotManifest, erased: Sequence[ErasedNames]) -> bool:
    """Whether a snapshot holds one collection alone, and that was deleted. Raises DatabaseError."""
    latest = max((one.until for one in erased if one.is_whole), default=None)
    if manifest.collection is None or latest is None:
        return False
    rows = open_rows(folder / manifest.rows_file)
    try:
        with Session(rows) as session:
            created_at = session.scalar(select(Collection.created_at).where(Collection.id == manifest.collection))
    finally:
        rows.dispose()
    return created_at is None or created_at <= latest


def _delete(folder: Path, erased: Sequence[ErasedNames]) -> SnapshotErasure:
    delete_folder(folder)
    return SnapshotErasure(None, {one.erasure_id for one in erased})


def _rewrite(
    folder: Path, manifest: SnapshotManifest, erased: Sequence[ErasedNames], check: Check, check_lease: Check
) -> SnapshotErasure:
    with lock_folder(folder):
        check_lease()  # a process that was paused would remove the new rows of another one
        _check_unchanged(folder, manifest)
        _remove_others(folder, manifest)  # an interrupted run has left them
        is_deleted = _holds_deleted_collection(folder, manifest, erased)
    if is_deleted:
        return _delete(folder, erased)
    new = folder / f"rows-{uuid4().hex}.sqlite"
    try:
        copy_rows(folder, manifest, new)
        check_lease()  # a process that was paused for long may copy rows from which another one has erased
        changed, written = _erase_rows(new, manifest, erased, check)
        if not changed:
            _delete_rows(new)
            return SnapshotErasure(manifest)
        seal_rows(new)
        written = replace(written, rows_sha256=hash_file(new))
        _replace_manifest(folder, manifest, written, check_lease)
    except BaseException:
        if not _is_named(folder, new):
            _empty(new)
        raise
    return SnapshotErasure(written, changed)


def _erase_rows(
    new: Path, manifest: SnapshotManifest, erased: Sequence[ErasedNames], check: Check
) -> tuple[set[str], SnapshotManifest]:
    """Erase from copied rows, and overwrite the files that they name no more.

    Returns the ids of the erasures that they held something of, and the manifest of the new rows without their hash.
    """
    rows = open_rows(new)
    try:
        changed = erase_from_rows(rows, erased, check)
        if not changed:
            return changed, manifest
        files, size = drop_unnamed_files(rows, new.parent / FILES)
        counts = count_rows(rows, list_copied_tables())
        return changed, replace(
            manifest,
            schema=read_schema_revision(rows) or "",
            rows={name: count for name, count in counts.items() if name in manifest.rows or count},
            files=files,
            bytes=size,
            missing=_list_missing(rows, manifest.missing),
            rows_file=new.name,
        )
    finally:
        rows.dispose()


def _is_named(folder: Path, rows: Path) -> bool:
    """Whether the manifest names these rows. If it cannot be read, it may."""
    try:
        return SnapshotManifest.read(folder).rows_file == rows.name
    except (AppError, OSError):
        return True


def _empty(rows: Path) -> None:
    """Leave nothing of new rows but an empty file, which says that files may be overwritten that the old rows name."""
    is_begun = rows.exists()
    _delete_rows(rows)
    if is_begun:
        with suppress(FileNotFoundError):  # somebody has deleted the snapshot
            rows.touch()


def _delete_rows(rows: Path) -> None:
    """Delete new rows, and what SQLite writes beside them."""
    for path in rows.parent.glob(f"{rows.name}*"):
        delete_path(path)


def _remove_others(folder: Path, manifest: SnapshotManifest) -> None:
    """Delete whatever in the folder does not belong to the snapshot.

    What a paused process has open keeps its contents on NFS, under another name until it ends: that is emptied.
    """
    for path in folder.iterdir():
        if path.name not in (MANIFEST, FILES, manifest.rows_file) and not path.name.startswith(NFS_PREFIX):
            delete_path(path)
    for path in folder.glob(f"{NFS_PREFIX}*"):
        with suppress(FileNotFoundError):
            os.truncate(path, 0)


def _replace_manifest(folder: Path, read: SnapshotManifest, written: SnapshotManifest, check_lease: Check) -> None:
    """Replace the manifest that was read at the beginning, and delete the rows that it named.

    Raises Busy if it is another, or the new rows are gone.
    """
    with lock_folder(folder):
        check_lease()
        _check_unchanged(folder, read)
        if not _is_whole(folder / written.rows_file, written):
            raise Busy(REWRITTEN)
        written.write(folder)
        _remove_others(folder, written)


def _check_unchanged(folder: Path, read: SnapshotManifest) -> None:
    """Raises Busy if the manifest is not the one that was read, Invalid if it is damaged."""
    if SnapshotManifest.read(folder) != read:
        raise Busy(REWRITTEN)


def _holds_its_rows(folder: Path, manifest: SnapshotManifest) -> bool:
    try:
        return hash_file(folder / manifest.rows_file) == manifest.rows_sha256
    except FileNotFoundError:  # another process has replaced the snapshot
        return False


def _is_whole(path: Path, manifest: SnapshotManifest) -> bool:
    """Whether the rows are those of the manifest. SQLite makes an empty file of one that was removed."""
    if hash_file(path) != manifest.rows_sha256:
        return False
    rows = open_rows(path)
    try:
        counts = count_rows(rows, list_copied_tables())
    except DatabaseError:
        return False
    finally:
        rows.dispose()
    return {name: count for name, count in counts.items() if count} == {n: c for n, c in manifest.rows.items() if c}


def _list_missing(rows: Engine, missing: Sequence[str]) -> list[str]:
    """List those of the missing photos whose faces are still in the snapshot."""
    with Session(rows) as session:
        faces = session.execute(select(Face.collection_id, Face.image_id).distinct())
        photos = {f"{BLOBS}/{collection}/{Blobs.photo(image)}" for collection, image in faces}
    return [path for path in missing if path in photos]


def list_pending_erasures(session: Session, collection: str) -> list[float]:
    """List the moments of the deletions in a collection that are not yet erased from kept snapshots: see `read_until`.

    The rows, which may have 20 MB each, are in memory one at a time.
    """
    pending = select(Erasure).where(Erasure.state == PENDING, Erasure.collection_id == collection)
    return [read_until(erasure) for erasure in session.scalars(pending.execution_options(yield_per=1))]


def has_pending_erasures(session: Session, collection: str | None = None) -> bool:
    """Whether something that was deleted is not yet erased from kept snapshots.

    collection: in which it was deleted; None: in any
    """
    is_there = () if collection is None else (Erasure.collection_id == collection,)
    return session.scalar(select(Erasure.id).where(Erasure.state == PENDING, *is_there).limit(1)) is not None


def refuse_pending_erasures(session: Session, collection: str | None = None) -> None:
    """Raises Conflict if something that was deleted is not yet erased from kept snapshots: a restore would undo it.

    collection: locked, so that a deletion that is being carried out is committed by then
    """
    if has_pending_erasures(session, collection):
        raise Conflict(STILL_ERASING)
