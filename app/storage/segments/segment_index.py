"""Find files in the segments of a collection, by an index in memory: 16 bytes for each photo of a segment."""

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.storage.segments.segment_file import SegmentEntry, SegmentFile, State, make_key
from ml.errors import Corrupt

SEGMENT_SUFFIX = ".seg"
ABSENT = (errno.ENOENT, errno.ENAMETOOLONG)
"""Why a collection has no folder: none was made, or none can be, since an earlier version accepted a longer id."""
MAX_OPEN_SEGMENTS = 64
MAX_RECENT_KEYS = 65_536
"""So many keys are in a dictionary, to which a segment is added quickly; more are moved to sorted arrays."""
UNCERTAIN_NANOSECONDS = 50_000_000
"""A folder that was changed so short a time ago can change again without another time of change."""
SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
LOCATION = np.dtype([("key", "<u8"), ("segment", "<u4"), ("position", "<u4")])

log = logging.getLogger("likeness.storage")
Location = tuple[int, int]
"""The number of a segment in this process, and the position of a photo's first entry in it."""


class FoundFile(NamedTuple):
    """A file in a segment, which is open."""

    segment: SegmentFile
    entry: SegmentEntry


class SegmentIndex:
    """Of one collection. The folder is looked at with each call: other processes add segments and remove them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._is_uncertain, self._read_at = False, 0.0
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next_number = 0
        self._recent: dict[int, list[Location]] = {}
        self._sorted: NDArray[np.void] = np.empty(0, LOCATION)
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()

    def refresh(self, max_age_seconds: float | None = None) -> bool:
        """Take in the segments that are new, and drop those that are gone. Returns False if there are none.

        max_age_seconds: read the folder again if it was read longer ago, even if it seems unchanged
        """
        with self._lock:
            try:
                status = os.stat(self.folder)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                if self._numbers:
                    self._forget()
                return False
            seen = status.st_ino, status.st_mtime_ns
            age = time.monotonic() - self._read_at
            is_old = max_age_seconds is not None and age >= max_age_seconds
            if seen != self._seen or self._is_uncertain or is_old:
                self._read_at = time.monotonic()
                self._is_uncertain = time.time_ns() - status.st_mtime_ns < UNCERTAIN_NANOSECONDS
                self._take_in()
                self._seen = seen
            return bool(self._numbers)

    def find(self, name: str, states: tuple[State, ...] = (State.STORED,)) -> Iterator[FoundFile]:
        """Yield the files of this name in these states; more than one if several processes stored it at once."""
        for stored in self.find_photo(make_key(name)):
            if stored.entry.name == name and stored.entry.state in states:
                yield stored

    def find_photo(self, key: int) -> Iterator[FoundFile]:
        """Yield all files of a photo, in any state but removed. key: see `make_key`"""
        with self._lock:
            opened = [(self._open_segment(number), position) for number, position in self._list_locations(key)]
        for segment, position in opened:
            if segment is not None:
                yield from (FoundFile(segment, entry) for entry in segment.find(position, key))

    def iterate_all(self) -> Iterator[FoundFile]:
        """Yield every file, segment by segment."""
        with self._lock:
            names = sorted(self._numbers)
        for name in names:
            try:
                segment = SegmentFile(f"{self.folder}/{name}")
            except (FileNotFoundError, Corrupt):
                continue
            yield from (FoundFile(segment, entry) for entry in segment.iterate_entries())

    def _take_in(self) -> None:
        with os.scandir(self.folder) as files:
            names = {file.name for file in files if file.name.endswith(SEGMENT_SUFFIX)}
        for name in self._numbers.keys() - names:
            number = self._numbers.pop(name)
            del self._names[number]
            self._open.pop(number, None)
        for name in sorted(names - self._numbers.keys()):
            self._add(name)

    def _add(self, name: str) -> None:
        try:
            segment = SegmentFile(f"{self.folder}/{name}")
            keys = segment.read_keys()
        except FileNotFoundError:
            return
        except Corrupt as error:
            log.error("segment.damaged path=%s/%s error=%s", self.folder, name, error)
            keys = np.empty(0, np.uint64)
        number = self._numbers[name] = self._next_number
        self._names[number] = name
        self._next_number += 1
        unique, positions = np.unique(keys, return_index=True)
        for key, position in zip(unique.tolist(), positions.tolist(), strict=True):
            if key:  # zeros are what is left of a removed entry
                self._recent.setdefault(key, []).append((number, position))
        if len(self._recent) > MAX_RECENT_KEYS:
            self._sort_recent()

    def _sort_recent(self) -> None:
        recent = [(key, *location) for key, locations in self._recent.items() for location in locations]
        kept = self._sorted[np.isin(self._sorted["segment"], list(self._names))]
        joined = np.concatenate([kept, np.array(recent, LOCATION)])
        self._sorted = joined[np.argsort(joined["key"], kind="stable")]
        self._recent = {}

    def _list_locations(self, key: int) -> list[Location]:
        locations = self._recent.get(key, [])
        if len(self._sorted):
            first, last = (int(np.searchsorted(self._sorted["key"], np.uint64(key), side)) for side in SIDES)
            locations = [(int(p["segment"]), int(p["position"])) for p in self._sorted[first:last]] + locations
        return [location for location in locations if location[0] in self._names]

    def _open_segment(self, number: int) -> SegmentFile | None:
        """Return an open segment; None if it is gone or damaged."""
        segment = self._open.get(number)
        if segment is None:
            try:
                segment = SegmentFile(f"{self.folder}/{self._names[number]}")
            except (FileNotFoundError, Corrupt):
                return None
            self._open[number] = segment
            if len(self._open) > MAX_OPEN_SEGMENTS:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return segment
