"""The snapshots that the service keeps in its home, each in a folder named by its id."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from app.config import SNAPSHOT_FOLDER
from app.errors import Busy, Conflict
from app.storage.free_space import MIN_FREE_BYTES, count_free_bytes, format_size, has_room

MANIFEST = "manifest.json"
"""The file that is written last: a folder without it holds no snapshot."""
DELETION_TRIES = 20
RETRY_SECONDS = 0.02


def locate_snapshot(home: Path, snapshot_id: str) -> Path:
    """Return the folder of a snapshot that the service keeps."""
    return home / SNAPSHOT_FOLDER / snapshot_id


def stage_snapshot(home: Path, snapshot_id: str) -> Path:
    """Return a folder for one attempt to write a snapshot, which is renamed at its end."""
    return home / SNAPSHOT_FOLDER / f"{snapshot_id}.{uuid4().hex}"


def get_snapshot_id(folder: Path) -> str:
    """Return the id of the snapshot that a folder holds, or that an attempt writes into it."""
    return folder.name.partition(".")[0]


def list_folders_of(home: Path, snapshot_id: str) -> list[Path]:
    """List the folder of a snapshot, if it exists, and those of attempts to write it."""
    return [folder for folder in list_snapshot_folders(home) if get_snapshot_id(folder) == snapshot_id]


def list_snapshot_folders(home: Path) -> list[Path]:
    """List the folders in which snapshots are kept, or are being written."""
    return sorted(path for path in (home / SNAPSHOT_FOLDER).glob("*") if path.is_dir() and not _is_foreign(path))


def _is_foreign(folder: Path) -> bool:
    """Whether a folder belongs to another user and cannot be read, as `lost+found` of a mount: no snapshot is there.

    Nor is one where the folder was deleted since it was listed.
    """
    try:
        return folder.stat().st_uid != os.geteuid() and not os.access(folder, os.R_OK | os.X_OK)
    except FileNotFoundError:
        return True


def is_complete(folder: Path) -> bool:
    """Whether the folder has a manifest, which is written last."""
    return (folder / MANIFEST).exists()


def is_kept_folder(home: Path, folder: Path) -> bool:
    """Whether the folder lies where the service keeps its snapshots, or a link there leads to it."""
    linked = {kept.resolve() for kept in list_snapshot_folders(home)}
    return folder.resolve().is_relative_to((home / SNAPSHOT_FOLDER).resolve()) or folder.resolve() in linked


def delete_folder(folder: Path) -> None:
    """Delete a snapshot, or what was written of it, as `delete_path`. Of a link to something else, only the link."""
    if folder.is_symlink():
        if is_complete(folder):
            _delete_linked(folder.resolve())
        folder.unlink(missing_ok=True)
    elif folder.exists():
        (folder / MANIFEST).unlink(missing_ok=True)  # from here on nobody takes it for complete
        delete_path(folder)


def _delete_linked(folder: Path) -> None:
    """Delete a snapshot that a link leads to. If that is interrupted, the manifest still says that it is a snapshot."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name != MANIFEST:
                delete_path(path)
    (folder / MANIFEST).unlink(missing_ok=True)
    delete_path(folder)


def delete_path(path: Path) -> None:
    """Delete a file, a link, or a folder with all that it holds, unless it is gone. Raises OSError.

    Other processes may delete it at the same time, or still write into the folder.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    left = DELETION_TRIES
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # another process deletes it too
            continue
        except OSError as error:
            left -= 1
            if error.errno != errno.ENOTEMPTY or left == 0:  # something was written into it
                raise
            time.sleep(RETRY_SECONDS)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from changing a snapshot for a moment. Raises Busy if one does now, OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise Busy("another process is changing the snapshot") from error
    finally:
        os.close(handle)


def check_room(path: Path, size: int) -> None:
    """Check that so many bytes fit on the disk of a file that will be written. Raises Conflict."""
    if not has_room(path.parent, size):
        free = count_free_bytes(path.parent)
        raise Conflict(
            f"the snapshot needs {format_size(size)} more, and {format_size(free)} are free, of which "
            f"{format_size(MIN_FREE_BYTES)} are left to the service; free some, or delete snapshots",
            code="InsufficientStorage",
        )


@contextmanager
def refuse_full_disk() -> Iterator[None]:
    """Raise Conflict in place of the error of a disk that became full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Conflict(
            "the disk became full while the snapshot was written; free some space", code="InsufficientStorage"
        ) from error
