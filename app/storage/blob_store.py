"""Photos, crops and cached descriptors as files, in a folder for each collection."""

import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from app.errors import Busy, NotFound
from app.storage.atomic_write import atomic_write_all
from ml.files import hash_bytes
from ml.types import CropKind

PREFIX, TRASH = "c-", "trash-"


class Blobs:
    """Files under `root/<collection>/`, written whole or not at all, and before the rows that name them.

    Names: photos/<sha256>, crops/<image>-<number>.<kind>.png, and beside each crop the cached output of an expensive
    descriptor, crops/<image>-<number>.<key>.f16
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def digest(data: bytes) -> str:
        """The id of a photo: its SHA-256."""
        return hash_bytes(data)

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
        """Write these files and return once they are on disk. An existing file keeps its bytes, and its age becomes 0.

        Raises Busy if the disk is full.
        """
        paths = ((self._absolute(collection, name), data) for name, data in files)
        try:
            atomic_write_all(self.root, ((path, data) for path, data in paths if not _touch(path)))
        except OSError as error:
            raise make_disk_error(error) from error

    def has(self, collection: str, names: Iterable[str]) -> bool:
        """Whether all of these files exist."""
        return all(os.path.exists(self._absolute(collection, name)) for name in names)

    def get(self, collection: str, name: str) -> bytes:
        """Return the bytes of a file. Raises NotFound."""
        try:
            return self._path(collection, name).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"the file {name} of collection {collection} does not exist") from error

    def remove(self, collection: str, names: Iterable[str]) -> int:
        """Remove these files; returns how many of them existed."""
        removed = 0
        for name in names:
            path = self._path(collection, name)
            removed += path.exists()
            path.unlink(missing_ok=True)
        return removed

    @staticmethod
    def parse_name(name: str) -> tuple[str, int | None]:
        """Return the photo that a file belongs to, and the number of the face; ("", None) for a temporary file.

        The number is None if the file is the photo itself.
        """
        kind, _, last = name.rpartition("/")
        if last.startswith("."):
            return "", None
        image, _, rest = last.partition("-")
        return image, int(rest.split(".")[0]) if kind.startswith("crops") else None

    def files_of(self, collection: str, image_id: str) -> list[str]:
        """Return the names of a photo and of all files of its faces."""
        folder = self._path(collection, f"crops/{image_id[:2]}")
        crops = folder.glob(f"{image_id}-*") if folder.is_dir() else ()
        return [self.photo(image_id), *(f"crops/{image_id[:2]}/{p.name}" for p in crops)]

    def age(self, collection: str, name: str) -> float:
        """Return the seconds since the file was last written or put again; 0 if it does not exist."""
        try:
            return time.time() - self._path(collection, name).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def set_aside(self, collection: str) -> None:
        """Move all files of a collection to the trash at once; `empty_trash` removes them."""
        with suppress(FileNotFoundError):
            self._path(collection, "").rename(self.root / f"{TRASH}{uuid4().hex}")

    def empty_trash(self) -> None:
        """Remove the files of collections that were set aside."""
        for folder in self.root.glob(f"{TRASH}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def collections(self) -> list[str]:
        """Return the ids of the collections that have files."""
        return sorted(p.name.removeprefix(PREFIX) for p in self.root.glob(f"{PREFIX}*"))

    def names(self, collection: str) -> Iterator[str]:
        """Yield the name of every file of a collection."""
        top = self._path(collection, "")
        for folder, _, files in os.walk(top):
            yield from (str(Path(folder, name).relative_to(top)) for name in files)

    def _path(self, collection: str, name: str) -> Path:
        return Path(self._absolute(collection, name))

    def _absolute(self, collection: str, name: str) -> str:
        # a collection id may be "." or "..": the prefix keeps it inside the root
        return f"{self.root}/{PREFIX}{collection}/{name}"


def make_disk_error(error: OSError) -> Exception:
    """Return the error to raise for a failed write: Busy if the disk is full, otherwise the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Busy("the disk is full; nothing of this request was stored")
    return error


def _touch(path: str) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
