"""Write files and folders whole or not at all, and hash them."""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`, which replaces it when the block ends without an error. Raises OSError."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_path(path.parent)


def move_folder(staged: Path, final: Path) -> None:
    """Rename a folder of files to a name that is not taken, once its files are on disk.

    Raises OSError if the name is taken; the staged folder is then left where it is.
    """
    for path in (*staged.iterdir(), staged):
        sync_path(path)
    staged.rename(final)
    sync_path(final.parent)


def sync_path(path: Path) -> None:
    """Return once this file or folder is on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def get_modified_at(path: Path) -> float:
    """Return when a file was last changed; infinity if it has been removed meanwhile. Raises OSError."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def hash_bytes(data: bytes) -> str:
    """The SHA-256 of these bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_regular_file(path: Path) -> bytes:
    """Return the bytes of a file. Raises OSError, also if it is no regular file: to read a pipe may never end."""
    _check_regular(path)
    return path.read_bytes()


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path.name} is no regular file")


def hash_file(path: Path) -> str:
    """The SHA-256 of a regular file's bytes, 64 hexadecimal digits. Raises OSError."""
    _check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: str | bytes) -> Any:
    """Return the value that a stored JSON text holds. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
