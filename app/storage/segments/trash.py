"""Remove the folder of a deleted collection, also while processes have its segments open."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from app.storage.segments.segment_index import SEGMENT_SUFFIX

NFS_PREFIX = ".nfs"
"""On NFS, an open file that is removed gets such a name, and keeps its contents until it is closed."""


def remove_folder(folder: str) -> None:
    """Remove a folder with all that it holds. Links in it are not followed, but a link to the folder is.

    What NFS keeps of open segments is empty, and stays with the folder, which is to be removed again later.
    Raises OSError if anything else is left. Several processes may remove it at once.
    """
    errors = list[OSError]()
    for path, folders, files in os.walk(f"{folder}/", topdown=False, onerror=lambda error: _note(errors, error)):
        for name in files:
            _attempt(errors, partial(_remove_file, os.path.join(path, name)))
        for name in folders:
            _attempt(errors, partial(_remove_empty, os.path.join(path, name)))
    if os.path.islink(folder) and not errors:
        with suppress(OSError):  # it may be the folder that a disk is mounted on
            os.rmdir(os.path.realpath(folder))
    _attempt(errors, partial(_remove_empty, folder))
    if errors and not _holds_only_empty_files(folder):
        raise errors[0]


def _attempt(errors: list[OSError], remove: Callable[[], None]) -> None:
    try:
        remove()
    except OSError as error:
        _note(errors, error)


def _note(errors: list[OSError], error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # another process has removed it
        errors.append(error)


def _remove_file(path: str) -> None:
    """Remove a file. One that processes keep open loses its contents before."""
    if path.endswith(SEGMENT_SUFFIX) or os.path.basename(path).startswith(NFS_PREFIX):
        os.truncate(path, 0)
    os.unlink(path)


def _remove_empty(folder: str) -> None:
    """Remove an empty folder, or what else has its name, such as a link."""
    if os.path.isdir(folder) and not os.path.islink(folder):
        os.rmdir(folder)
    else:
        os.unlink(folder)


def _holds_only_empty_files(folder: str) -> bool:
    """Whether a folder holds files that NFS keeps, which are empty, and no other."""
    paths = [os.path.join(path, name) for path, _, files in os.walk(f"{folder}/") for name in files]
    are_kept = all(os.path.basename(path).startswith(NFS_PREFIX) for path in paths)
    return bool(paths) and are_kept and not any(map(os.path.getsize, paths))
