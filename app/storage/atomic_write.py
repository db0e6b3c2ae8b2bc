"""Write many files at once, each completely or not at all; `ml.files.atomic_write` writes one."""

import ctypes
import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from uuid import uuid4

MAX_SINGLE_SYNCS = 8
"""For more files than this, one call syncs the whole file system instead, on systems that have it (Linux)."""
SYNCFS = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None


def atomic_write_all(root: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write several new files below `root`. All are written before any is synced. Missing folders are created, but
    `root` is not.

    Raises OSError; the files that are not yet renamed are then removed.
    """
    folders: set[str] = set()
    parts: dict[str, str] = {}
    try:
        for path, data in files:
            folders.add(os.path.dirname(path))
            parts[_write_part(root, path, data)] = path
        sync_paths(root, parts)
        while parts:
            os.rename(*parts.popitem())
        sync_paths(root, folders)
    finally:
        for part in parts:
            Path(part).unlink(missing_ok=True)


def sync_paths(root: Path, paths: Collection[str]) -> None:
    """Return once these files and folders, all below `root`, are on disk. Raises OSError."""
    if len(paths) > MAX_SINGLE_SYNCS and SYNCFS is not None:
        _with_handle(str(root), SYNCFS)
        return
    for path in paths:
        _with_handle(path, os.fsync)


def _write_part(root: Path, path: str, data: bytes) -> str:
    """Write a temporary file in the folder of `path`, whose name starts with a dot."""
    folder = os.path.dirname(path)
    part = f"{folder}/.{uuid4().hex}"
    try:
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileNotFoundError:
        os.stat(root)  # a home that was moved away is not made anew
        os.makedirs(folder, exist_ok=True)
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(file, remaining) :]  # a disk that is nearly full takes only a part
    except OSError:
        os.unlink(part)
        raise
    finally:
        os.close(file)
    return part


def _with_handle(path: str, sync: Callable[[int], object]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        if sync(handle):
            raise OSError(ctypes.get_errno(), "the file system could not be synced")
    finally:
        os.close(handle)
