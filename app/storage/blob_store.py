"""Photos, crops and cached descriptors, in a folder for each collection: as files, or many of them in a segment."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from prometheus_client import Counter

from app.db.database_file import OpenedPath
from app.errors import AppError, Busy, Invalid, NotFound
from app.storage.atomic_write import atomic_write_all
from app.storage.segments.collection_segments import DAMAGED_SUFFIX, CollectionSegments, SegmentStore, is_segment
from app.storage.segments.trash import remove_folder
from ml.errors import Corrupt
from ml.files import hash_bytes
from ml.images import check_png
from ml.types import CropKind

PREFIX, TRASH = "c-", "trash-"
MAX_WRITES = 5
MAX_SINGLE_FILES = 8
"""More new files than this are written as a segment."""
FILES_PER_CHECK = 8
"""How many files are removed between two checks of a lock."""
MISSING_SECONDS = 1.0
"""How often segments are listed anew, at most, because a file is missing: a network file system may hide a change."""
DAMAGED_CODE = "StoredFileDamaged"
DAMAGED_FILES = Counter(
    "likeness_damaged_files",
    "Requests for a photo or crop that this process refused because the stored file is damaged",
    ("kind",),
    registry=None,
)

log = logging.getLogger("likeness.storage")


class Blobs:
    """Files under `root/<collection>/`, written whole or not at all, and before the rows that name them.

    A few files are written as files of the disk, more as one segment: see docs/decisions/0040-segments.md. What has a
    name here is called a file in either case. Several threads may use one store.

    Names: photos/<sha256>, crops/<image>-<number>.<kind>.png, and beside each crop the cached output of an expensive
    descriptor, crops/<image>-<number>.<key>.f16
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened = OpenedPath(root)
        self._segments = SegmentStore(str(root))

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

        A photo of another size than its bytes here is damaged, and is written again, as is a file that is removed
        before it has its name: an erasure removes what no row names yet.
        Raises Busy if the disk is full or read-only, if the folder is not the one that was opened, or if files keep
        being removed.
        """
        wanted = dict(files)
        for _ in range(MAX_WRITES):
            segments = self._segments.open(self._absolute(collection, ""))
            missing = {
                name: data
                for name, data in wanted.items()
                if not (segments.touch(name, len(data)) or self._touch(collection, name, data))
            }
            try:
                if len(missing) > MAX_SINGLE_FILES:
                    self._segments.write(self._absolute(collection, ""), missing)
                else:
                    paths = ((self._absolute(collection, name), data) for name, data in missing.items())
                    atomic_write_all(self.root, paths)
            except FileNotFoundError:
                if not self.root.exists():
                    raise
            except OSError as error:
                raise make_disk_error(error) from error
            else:
                if not self._opened.is_same():  # whose row is committed must not lie below a mount that has ended
                    raise Busy("the folder of photos was moved or replaced; nothing of this request was stored")
                return
        raise Busy("the files of this collection are being removed; nothing of this request was stored")

    def quarantine(self, collection: str, name: str) -> None:
        """Rename a damaged file, so that it can be written again. It is removed with the face that it belongs to."""
        self._open_segments(collection).set_aside(name)
        with suppress(FileNotFoundError):
            self._path(collection, name).rename(self._absolute(collection, f"{name}{DAMAGED_SUFFIX}"))

    def has(self, collection: str, names: Iterable[str]) -> bool:
        """Whether all of these files exist."""
        return not self.list_missing(collection, names)

    def list_missing(self, collection: str, names: Iterable[str]) -> set[str]:
        """Return those of these files that do not exist."""
        wanted = set(names)
        wanted -= self._open_segments(collection).list_stored(wanted)
        return {name for name in wanted if not os.path.exists(self._absolute(collection, name))}

    def get(self, collection: str, name: str) -> bytes:
        """Return the bytes of a file. Raises NotFound."""
        segments = self._open_segments(collection)
        data = segments.read(name)
        if data is not None:
            return data
        try:
            return self._path(collection, name).read_bytes()
        except FileNotFoundError as error:
            data = self._open_segments(collection, MISSING_SECONDS).read(name)
            if data is not None:
                return data
            raise NotFound(f"the file {name} of collection {collection} does not exist") from error

    def get_photo(self, collection: str, image_id: str) -> bytes:
        """Return the bytes of a photo, which have the hash that is its id.

        Raises NotFound, AppError (StoredFileDamaged), which is counted.
        """
        data = self.get(collection, self.photo(image_id))
        if self.digest(data) != image_id:
            raise report_damaged_file("photo", self._absolute(collection, self.photo(image_id)))
        return data

    def get_crop(self, collection: str, image_id: str, number: int, kind: CropKind) -> bytes:
        """Return a crop as PNG, whose check sums are right. Raises NotFound, AppError (StoredFileDamaged)."""
        data = self.get(collection, self.crop(image_id, number, kind))
        try:
            check_png(data)
        except Corrupt as error:
            path = self._absolute(collection, self.crop(image_id, number, kind))
            raise report_damaged_file("crop", path) from error
        return data

    def remove(self, collection: str, names: Iterable[str], check_lock: Callable[[], None] = lambda: None) -> int:
        """Remove these files; returns how many of them existed.

        check_lock: is called before every few files, and raises if they may be needed again
        """
        wanted = list(names)
        removed = self._open_segments(collection, max_age_seconds=0).remove(wanted, check_lock)
        for position, name in enumerate(wanted):
            if position % FILES_PER_CHECK == 0:
                check_lock()
            path = self._path(collection, name)
            if path.exists():
                removed.add(name)
                path.unlink(missing_ok=True)
        return len(removed)

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
        in_segments = self._open_segments(collection, max_age_seconds=0).list_names_of(self.photo(image_id))
        return list(
            dict.fromkeys([self.photo(image_id), *(f"crops/{image_id[:2]}/{p.name}" for p in crops), *in_segments])
        )

    def age(self, collection: str, name: str) -> float:
        """Return the seconds since the file was last written or put again; 0 if it does not exist."""
        put_at = self._open_segments(collection).find_time(name)
        try:
            return time.time() - (self._path(collection, name).stat().st_mtime if put_at is None else put_at)
        except FileNotFoundError:
            return 0.0

    def measure(self, names: Mapping[str, Iterable[str]]) -> int:
        """Return the size of these files in bytes. names: collection -> names; what does not exist counts nothing"""
        size = 0
        for collection, own in names.items():
            segments = self._open_segments(collection)
            for name in own:
                stored = segments.measure(name)
                with suppress(FileNotFoundError):
                    size += os.stat(self._absolute(collection, name)).st_size if stored is None else stored
        return size

    def set_aside(self, collection: str) -> None:
        """Move all files of a collection to the trash at once; `empty_trash` removes them."""
        if not os.path.exists(self._absolute(collection, "")):  # also if the name is longer than one of a file can be
            return
        with suppress(FileNotFoundError):
            self._path(collection, "").rename(self.root / f"{TRASH}{uuid4().hex}")
        self.close(collection)

    def close(self, collection: str) -> None:
        """Close the segments of a collection. They are opened again when they are needed."""
        self._segments.close(self._absolute(collection, ""))

    def empty_trash(self) -> bool:
        """Remove the files of collections that were set aside. Returns False if some are left, which is logged."""
        is_empty = True
        for folder in self.root.glob(f"{TRASH}*"):
            try:
                remove_folder(str(folder))
            except OSError as error:
                log.error("trash.not_removed path=%s error=%s", folder, error)
                is_empty = False
        return is_empty

    def collections(self) -> list[str]:
        """Return the ids of the collections that have files."""
        return sorted(p.name.removeprefix(PREFIX) for p in self.root.glob(f"{PREFIX}*"))

    def names(self, collection: str) -> Iterator[str]:
        """Yield the name of every file of a collection."""
        top = self._path(collection, "")
        for folder, _, files in os.walk(top):
            names = (str(Path(folder, name).relative_to(top)) for name in files)
            yield from (name for name in names if not is_segment(name))
        yield from self._open_segments(collection, max_age_seconds=0).iterate_names()

    def _touch(self, collection: str, name: str, data: bytes) -> bool:
        """Set the age of a file to 0. Returns False if it does not exist, or is a photo that is cut short."""
        path = self._absolute(collection, name)
        try:
            os.utime(path)
            return not name.startswith("photos/") or os.stat(path).st_size == len(data)
        except FileNotFoundError:
            return False

    def _open_segments(self, collection: str, max_age_seconds: float | None = None) -> CollectionSegments:
        return self._segments.open(self._absolute(collection, ""), max_age_seconds)

    def _path(self, collection: str, name: str) -> Path:
        return Path(self._absolute(collection, name))

    def _absolute(self, collection: str, name: str) -> str:
        # a collection id may be "." or "..": the prefix keeps it inside the root
        if "/" in collection or "/../" in f"/{name}/":
            raise Invalid(f"{name!r} of {collection!r} does not belong there: it cannot be the name of a file")
        return f"{self.root}/{PREFIX}{collection}/{name}"


def report_damaged_file(kind: Literal["photo", "crop"], path: str) -> AppError:
    """Count and log a damaged file, and return the error to raise."""
    DAMAGED_FILES.labels(kind).inc()
    log.error("file.damaged kind=%s path=%s", kind, path)
    return AppError(
        f"the stored {kind} is damaged: its content is not what was written. An operator can restore it from a backup",
        code=DAMAGED_CODE,
    )


def make_disk_error(error: OSError) -> Exception:
    """Return the error to raise for a failed write: Busy if the disk is full or read-only, Invalid if the id of the
    collection, which an earlier version accepted, is too long; otherwise the same error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Busy("the disk is full; nothing of this request was stored")
    if error.errno == errno.ENAMETOOLONG:
        return Invalid("the id of this collection is too long for the names of its files; use another collection")
    if error.errno == errno.EROFS:
        log.error("disk.read_only error=%s", error)
        return Busy("the disk is read-only; nothing of this request was stored")
    return error
