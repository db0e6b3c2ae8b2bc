"""A segment: the files of many photos in one file of the disk, which is written and synced once.

Layout, little-endian: a header, an entry for each file, which ends with its name, then their contents. Once a segment
has its own name, only entries change, and what is removed: its content becomes a hole, and its entry zeros.
See docs/decisions/0040-segments.md.
"""

import ctypes
import errno
import logging
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from hashlib import blake2b
from itertools import starmap, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt

MAGIC = b"LKSEGM01"
HEADER = struct.Struct("<8sII")
"""Magic, number of entries, bytes of each entry."""
ENTRY = struct.Struct("<BxHIQQQd")
"""State, length of the name, CRC-32, key, offset and length of the content, time of the last put. The name follows."""
CHECKED = struct.Struct("<HQQQ")
"""What the CRC-32 of an entry covers besides its name."""
STATE_OFFSET, KEY_OFFSET, PUT_AT_OFFSET = 0, 8, 32
ENTRIES_PER_READ = 8
ZEROS_PER_WRITE = 2**20
FALLOCATE = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None) if sys.platform == "linux" else None
KEEP_SIZE_AND_PUNCH_HOLE = 0x01 | 0x02

log = logging.getLogger("likeness.storage")


class State(IntEnum):
    """Of an entry. An entry that is being removed does not exist for readers, but its content may be there."""

    REMOVED = 0
    STORED = 1
    DAMAGED = 2
    REMOVING = 3


class SegmentEntry(NamedTuple):
    """A file in a segment. entry_offset: of the entry; offset, length: of the content; put_at: seconds since 1970"""

    entry_offset: int
    state: State
    name: str
    offset: int
    length: int
    put_at: float


def make_key(name: str) -> int:
    """Return the key of a file's photo, 64 bits: all files of a photo have one key."""
    image = name.rpartition("/")[2].partition("-")[0].partition(".")[0]
    return int.from_bytes(blake2b(image.encode(), digest_size=8).digest(), "little")


def encode_segment(files: dict[str, bytes]) -> Iterator[bytes]:
    """Yield the bytes of a segment: what precedes the contents, then each content. Files of a photo are neighbours."""
    ordered = sorted((make_key(name), name) for name in files)
    entry_bytes = ENTRY.size + max(len(name.encode()) for name in files)
    offset, put_at = HEADER.size + entry_bytes * len(files), time.time()
    head = [HEADER.pack(MAGIC, len(files), entry_bytes)]
    for key, name in ordered:
        encoded, length = name.encode(), len(files[name])
        crc = _checksum(key, offset, length, encoded)
        entry = ENTRY.pack(State.STORED, len(encoded), crc, key, offset, length, put_at) + encoded
        head.append(entry.ljust(entry_bytes, b"\0"))
        offset += length
    yield b"".join(head)
    yield from (files[name] for _, name in ordered)


def _checksum(key: int, offset: int, length: int, name: bytes) -> int:
    return zlib.crc32(name, zlib.crc32(CHECKED.pack(len(name), key, offset, length)))


class SegmentFile:
    """An open segment. Several threads may use one. The file is closed with the last reference to this object."""

    def __init__(self, path: str) -> None:
        """Raises FileNotFoundError, OSError, Corrupt."""
        self.path, self._file = path, -1
        self._file = os.open(path, os.O_RDONLY)
        header = os.pread(self._file, HEADER.size, 0)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise Corrupt("it has no header of a segment")
        _, self.count, self.entry_bytes = HEADER.unpack(header)
        if self.entry_bytes < ENTRY.size or self.head_bytes > self.measure():
            raise Corrupt("it is cut short")

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    @property
    def head_bytes(self) -> int:
        """The bytes before the first content."""
        return HEADER.size + int(self.entry_bytes * self.count)

    def read_keys(self) -> NDArray[np.uint64]:
        """Return the key of each entry, (count,); 0 where it was removed. Raises FileNotFoundError if it is removed."""
        table = self.read_range(HEADER.size, self.head_bytes)
        if self.count and not table:
            raise FileNotFoundError(errno.ENOENT, "its collection is removed", self.path)
        rows = np.frombuffer(table, np.uint8).reshape(-1, self.entry_bytes)
        return np.ascontiguousarray(rows[:, KEY_OFFSET : KEY_OFFSET + 8]).view("<u8")[:, 0]

    def iterate_entries(self) -> Iterator[SegmentEntry]:
        """Yield what is not removed, in order. Damaged entries are logged and left out."""
        return filter(None, starmap(self._decode, self._read(0)))

    def find(self, first: int, key: int) -> Iterator[SegmentEntry]:
        """Yield the entries of a key. first: the position of the first of them, by an earlier look at the table"""
        wanted = key.to_bytes(8, "little")
        of_key = takewhile(lambda read: read[1][KEY_OFFSET : KEY_OFFSET + 8] == wanted, self._read(first))
        return filter(None, starmap(self._decode, of_key))

    def read_content(self, entry: SegmentEntry) -> bytes | None:
        """Return the content; None if it is being removed. A segment that is cut short gives what there is."""
        data = os.pread(self._file, entry.length, entry.offset)
        while 0 < len(data) < entry.length:  # one call returns at most 2 GiB
            more = os.pread(self._file, entry.length - len(data), entry.offset + len(data))
            if not more:
                break
            data += more
        state = os.pread(self._file, 1, entry.entry_offset + STATE_OFFSET)
        return data if state and state[0] == entry.state else None

    def is_whole(self, entry: SegmentEntry) -> bool:
        """Whether the file is long enough for this content."""
        return os.fstat(self._file).st_size >= entry.offset + entry.length

    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes of a range, without what lies after the end of the file."""
        return os.pread(self._file, end - start, start)

    def measure(self) -> int:
        """Return the size of the file in bytes, holes included."""
        return os.fstat(self._file).st_size

    def _read(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and bytes of the entries from a position on that were not removed."""
        for start in range(first, self.count, ENTRIES_PER_READ):
            entry_offset = HEADER.size + self.entry_bytes * start
            end = min(entry_offset + self.entry_bytes * ENTRIES_PER_READ, self.head_bytes)
            table = self.read_range(entry_offset, end)
            for at in range(0, len(table), self.entry_bytes):
                if table[at + STATE_OFFSET] != State.REMOVED:
                    yield entry_offset + at, table[at : at + self.entry_bytes]

    def _decode(self, entry_offset: int, data: bytes) -> SegmentEntry | None:
        state, name_length, crc, key, offset, length, put_at = ENTRY.unpack_from(data)
        name = data[ENTRY.size : ENTRY.size + name_length]
        if _checksum(key, offset, length, name) == crc and state <= State.REMOVING:
            return SegmentEntry(entry_offset, State(state), name.decode(), offset, length, put_at)
        if os.pread(self._file, 1, entry_offset + STATE_OFFSET) != b"\0":  # it was not removed just now
            log.error("segment.damaged path=%s offset=%d", self.path, entry_offset)
        return None


def mark_put(path: str, entry: SegmentEntry) -> None:
    """Set the age of a file to 0. Raises FileNotFoundError."""
    with _open_to_write(path) as file:
        _write(file, struct.pack("<d", time.time()), entry.entry_offset + PUT_AT_OFFSET)


def mark_damaged(path: str, entry: SegmentEntry) -> None:
    """Set a file aside: it counts as missing, and its content stays until it is removed. Raises FileNotFoundError."""
    with _open_to_write(path) as file:
        _write(file, bytes([State.DAMAGED]), entry.entry_offset + STATE_OFFSET)
        os.fsync(file)


def remove_entries(path: str, entries: Iterable[SegmentEntry]) -> None:
    """Remove files from a segment, and the segment with its last file. Safe to repeat after a crash at any point.

    First the files vanish for readers, then their contents, and last their entries. Raises OSError.
    """
    wanted = list(entries)
    with suppress(FileNotFoundError), _open_to_write(path) as file:
        for entry in wanted:
            _write(file, bytes([State.REMOVING]), entry.entry_offset + STATE_OFFSET)
        for entry in wanted:
            _punch_hole(file, entry.offset, entry.length)
        os.fsync(file)
        _, count, entry_bytes = HEADER.unpack(os.pread(file, HEADER.size, 0))
        for entry in wanted:
            _write(file, bytes(entry_bytes), entry.entry_offset)
        os.fsync(file)
        if not any(os.pread(file, entry_bytes * count, HEADER.size)):
            os.unlink(path)


def _punch_hole(file: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the disk; where the file system cannot, write zeros over it."""
    if not length:
        return
    if FALLOCATE is not None:
        span = ctypes.c_longlong(offset), ctypes.c_longlong(length)
        if FALLOCATE(file, KEEP_SIZE_AND_PUNCH_HOLE, *span) == 0:
            return
        if ctypes.get_errno() not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
            raise OSError(ctypes.get_errno(), "a part of a segment could not be removed")
    for start in range(offset, offset + length, ZEROS_PER_WRITE):
        _write(file, bytes(min(ZEROS_PER_WRITE, offset + length - start)), start)


def _write(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


@contextmanager
def _open_to_write(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDWR)
    try:
        yield file
    finally:
        os.close(file)


def split_segment(path: str) -> Iterator[tuple[str | None, bytes]]:
    """Yield every byte of a segment: those of each stored file with its name, all others with None.

    A segment that is damaged is yielded as bytes that belong to no file. A file that vanishes meanwhile ends.
    """
    try:
        segment = SegmentFile(path)
    except FileNotFoundError:
        return
    except Corrupt:
        with open(path, "rb") as file:
            while block := file.read(ZEROS_PER_WRITE):
                yield None, block
        return
    yield None, segment.read_range(0, segment.head_bytes)
    end = segment.head_bytes
    for entry in sorted(segment.iterate_entries(), key=lambda entry: entry.offset):
        yield from _read_gap(segment, end, entry.offset)
        yield entry.name, segment.read_range(entry.offset, entry.offset + entry.length)
        end = entry.offset + entry.length
    yield from _read_gap(segment, end, segment.measure())


def _read_gap(segment: SegmentFile, start: int, end: int) -> Iterator[tuple[None, bytes]]:
    if start < end:
        yield None, segment.read_range(start, end)
