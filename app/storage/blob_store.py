"""Photos and crops as files, under their collection."""

import ctypes
import errno
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from app.errors import Busy, NotFound
from ml.types import CropKind

PREFIX, TRASH = "c-", "trash-"
FEW = 8
SYNC_ALL = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None


class Blobs:
    """Files under `root/<collection>/`, written whole or not at all. Callers sync before they commit the row.

    Names: photos/<sha256>, crops/<image>-<number>.<kind>.png, and beside them what a dear descriptor says of the crop,
    crops/<image>-<number>.<key>.f16
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    @staticmethod
    def photo(image_id: str) -> str:
        return f"photos/{image_id[:2]}/{image_id}"

    @staticmethod
    def crop(image_id: str, number: int, kind: CropKind) -> str:
        return f"crops/{image_id[:2]}/{image_id}-{number}.{kind}.png"

    @staticmethod
    def described(image_id: str, number: int, key: str) -> str:
        return f"crops/{image_id[:2]}/{image_id}-{number}.{key}.f16"

    def put(self, collection: str, files: Iterable[tuple[str, bytes]]) -> None:
        """Writes these and returns once they are on the disk. A name that is there keeps its bytes, and is young again.

        Raises Busy where the disk is full.
        """
        folders: set[str] = set()
        parts: dict[str, str] = {}
        try:
            for name, data in files:
                path = self._place(collection, name)
                folders.add(os.path.dirname(path))
                if not _touched(path):
                    parts[_written(path, data)] = path
            _sync(self.root, parts)  # all are written before any is waited for: the disk takes them together
            while parts:
                os.rename(*parts.popitem())
            _sync(self.root, folders)
        except OSError as error:
            raise full(error) from error
        finally:
            for part in parts:
                Path(part).unlink(missing_ok=True)

    def has(self, collection: str, names: Iterable[str]) -> bool:
        """Whether all of these are there."""
        return all(os.path.exists(self._place(collection, name)) for name in names)

    def get(self, collection: str, name: str) -> bytes:
        """Raises NotFound."""
        try:
            return self._path(collection, name).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"the file {name} of collection {collection} is not there") from error

    def remove(self, collection: str, names: Iterable[str]) -> int:
        """How many were there."""
        gone = 0
        for name in names:
            path = self._path(collection, name)
            gone += path.exists()
            path.unlink(missing_ok=True)
        return gone

    @staticmethod
    def meaning(name: str) -> tuple[str, int | None]:
        """The photo that a file is of, and the number of the face if it is a crop; ("", None): a file half written."""
        kind, _, last = name.rpartition("/")
        if last.startswith("."):
            return "", None
        image, _, rest = last.partition("-")
        return image, int(rest.split(".")[0]) if kind.startswith("crops") else None

    def of(self, collection: str, image_id: str) -> list[str]:
        """The photo and whatever is kept of its faces."""
        folder = self._path(collection, f"crops/{image_id[:2]}")
        crops = folder.glob(f"{image_id}-*") if folder.is_dir() else ()
        return [self.photo(image_id), *(f"crops/{image_id[:2]}/{p.name}" for p in crops)]

    def age(self, collection: str, name: str) -> float:
        """Seconds since it was last put; 0 where it is not there."""
        try:
            return time.time() - self._path(collection, name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def set_aside(self, collection: str) -> None:
        """Takes all files of a collection away at once; `empty_trash` removes them."""
        with suppress(FileNotFoundError):
            self._path(collection, "").rename(self.root / f"{TRASH}{uuid4().hex}")

    def empty_trash(self) -> None:
        for folder in self.root.glob(f"{TRASH}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def collections(self) -> list[str]:
        """Those that have files."""
        return sorted(p.name.removeprefix(PREFIX) for p in self.root.glob(f"{PREFIX}*"))

    def names(self, collection: str) -> Iterator[str]:
        """Every file, for the sweep."""
        top = self._path(collection, "")
        for folder, _, files in os.walk(top):
            yield from (str(Path(folder, name).relative_to(top)) for name in files)

    def _path(self, collection: str, name: str) -> Path:
        return Path(self._place(collection, name))

    def _place(self, collection: str, name: str) -> str:
        # an id may be "." or "..": the prefix keeps it a folder of its own
        return f"{self.root}/{PREFIX}{collection}/{name}"


def full(error: OSError) -> Exception:
    """What to raise for it: a disk that is full is no fault of the request's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Busy("the disk is full; nothing of this was kept")
    return error


def _touched(path: str) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _written(path: str, data: bytes) -> str:
    folder = os.path.dirname(path)
    part = f"{folder}/.{uuid4().hex}"
    try:
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]  # of which a disk that is nearly full takes a part
    except OSError:
        os.unlink(part)
        raise
    finally:
        os.close(file)
    return part


def _sync(root: Path, paths: Collection[str]) -> None:
    """Returns once these are on the disk; many at once by one call where the system has it (Linux)."""
    if len(paths) > FEW and SYNC_ALL is not None:
        _with_handle(str(root), SYNC_ALL)
        return
    for path in paths:
        _with_handle(path, os.fsync)


def _with_handle(path: str, do: Callable[[int], object]) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        if do(handle):
            raise OSError(ctypes.get_errno(), "the disk could not keep what was written")
    finally:
        os.close(handle)
