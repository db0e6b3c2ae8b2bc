"""The segments of collections: what the blob store does with the files in them."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from app.storage import atomic_write
from app.storage.segments.segment_file import (
    SegmentEntry,
    State,
    encode_segment,
    make_key,
    mark_damaged,
    mark_put,
    remove_entries,
)
from app.storage.segments.segment_index import SEGMENT_SUFFIX, FoundFile, SegmentIndex

SEGMENT_FOLDER = "segments"
DAMAGED_SUFFIX = ".damaged"
"""The end of the name of a file that was set aside, so that it can be written again."""
MAX_OPEN_COLLECTIONS = 64


def is_segment(name: str) -> bool:
    """Whether a file of a collection's folder is a segment. name: relative to the folder"""
    return name.startswith(f"{SEGMENT_FOLDER}/") and name.endswith(SEGMENT_SUFFIX)


class SegmentStore:
    """Opens the segments of collections, and writes new ones. Several threads may use one store."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, SegmentIndex] = OrderedDict()

    def open(self, folder: str, max_age_seconds: float | None = None) -> "CollectionSegments":
        """Return the segments in a collection's folder, as they are now. max_age_seconds: see `SegmentIndex.refresh`"""
        with self._lock:
            index = self._opened.get(folder)
            if index is None:
                index = self._opened[folder] = SegmentIndex(f"{folder}{SEGMENT_FOLDER}")
            self._opened.move_to_end(folder)
            if len(self._opened) > MAX_OPEN_COLLECTIONS:
                self._opened.popitem(last=False)
        return CollectionSegments(index, index.refresh(max_age_seconds))

    def close(self, folder: str) -> None:
        """Close the segments in a collection's folder, once the last call that reads them has ended."""
        with self._lock:
            self._opened.pop(folder, None)

    def write(self, folder: str, files: dict[str, bytes]) -> None:
        """Write a segment into a collection's folder. The folder is created, but the root is not.

        Raises OSError; FileNotFoundError if what was written is removed meanwhile.
        """
        target = f"{folder}{SEGMENT_FOLDER}"
        part, final = f"{target}/.{uuid4().hex}", f"{target}/{uuid4().hex}{SEGMENT_SUFFIX}"
        folders = self._create(target)
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            for block in encode_segment(files):
                remaining = memoryview(block)
                while remaining:
                    remaining = remaining[os.write(file, remaining) :]  # a disk that is nearly full takes only a part
            atomic_write.sync_paths(Path(self.root), [part])
            os.rename(part, final)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(part)
            raise
        finally:
            os.close(file)
        atomic_write.sync_paths(Path(self.root), folders)

    def _create(self, folder: str) -> list[str]:
        """Create a folder below the root, and return it with those above it that are new."""
        if os.path.isdir(folder):
            return [folder]
        os.stat(self.root)  # a home that was moved away is not made anew
        os.makedirs(folder, exist_ok=True)
        return [folder, os.path.dirname(folder), self.root]


class CollectionSegments:
    """The segments of one collection. Names are those of the blob store."""

    def __init__(self, index: SegmentIndex, has_segments: bool) -> None:
        self._index, self._has_segments = index, has_segments

    def list_stored(self, names: Collection[str]) -> set[str]:
        """Return those of these names whose files are stored, and neither set aside nor being removed."""
        if not self._has_segments:
            return set()
        keys = {make_key(name) for name in names}
        entries = (entry for key in keys for _, entry in self._index.find_photo(key) if entry.state == State.STORED)
        return {entry.name for entry in entries}.intersection(names)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if it is not stored."""
        candidates = self._find_named(name) if name.endswith(DAMAGED_SUFFIX) else self._find(name)
        contents = (segment.read_content(entry) for segment, entry in candidates)
        return next((content for content in contents if content is not None), None)

    def touch(self, name: str, length: int) -> bool:
        """Set the age of a file to 0. Returns False if it is not stored or cut short, or is a photo of another size."""
        for segment, entry in self._find(name):
            if segment.is_whole(entry) and (entry.length == length or not name.startswith("photos/")):
                with suppress(FileNotFoundError):
                    mark_put(segment.path, entry)
                    return True
        return False

    def find_time(self, name: str) -> float | None:
        """Return when a file was put last, in seconds since 1970; None if there is none."""
        return max((entry.put_at for _, entry in self._find_named(name)), default=None)

    def measure(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it is not stored."""
        return next((entry.length for _, entry in self._find(name)), None)

    def set_aside(self, name: str) -> None:
        """Let a damaged file count as missing. Its name then ends in DAMAGED_SUFFIX."""
        for segment, entry in self._find(name):
            with suppress(FileNotFoundError):
                mark_damaged(segment.path, entry)

    def remove(self, names: Iterable[str], check_lock: Callable[[], None] = lambda: None) -> set[str]:
        """Remove these files, and return the names of those that existed. check_lock: is called before each segment"""
        removed: set[str] = set()
        entries: dict[str, list[SegmentEntry]] = {}
        for name in names:
            for segment, entry in self._find_named(name):
                entries.setdefault(segment.path, []).append(entry)
                removed.add(name)
        for path, own in entries.items():
            check_lock()
            remove_entries(path, own)
        return removed

    def list_names_of(self, photo: str) -> list[str]:
        """Return the names of a photo and of all files of its faces, also of those that a crash left half removed."""
        return [_get_name(stored) for stored in self._index.find_photo(make_key(photo))] if self._has_segments else []

    def iterate_names(self) -> Iterator[str]:
        """Yield the names of all files, also of those that a crash left half removed."""
        return map(_get_name, self._index.iterate_all()) if self._has_segments else iter(())

    def _find(self, name: str) -> Iterator[FoundFile]:
        return self._index.find(name) if self._has_segments else iter(())

    def _find_named(self, name: str) -> Iterator[FoundFile]:
        """Yield what `iterate_names` gives this name."""
        if not self._has_segments:
            return iter(())
        return (stored for stored in self._index.find_photo(make_key(name)) if _get_name(stored) == name)


def _get_name(stored: FoundFile) -> str:
    return stored.entry.name + (DAMAGED_SUFFIX if stored.entry.state == State.DAMAGED else "")
