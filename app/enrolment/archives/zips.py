"""Read zip and zip64 archives, whose directory is read entry by entry.

The standard library would hold the entries of the whole directory in memory, which may be a million.

Layout: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16.
"""

import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, Entry, Kind, clean_path, make_refusal, quote_name
from ml.errors import Unreadable

END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
FULL32, FULL16 = 0xFFFFFFFF, 0xFFFF
STORED, DEFLATED = 0, 8
ENCRYPTED, UTF8, UNIX = 1, 0x800, 3
BLOCK_BYTES = 2**20
MAX_EXPANSION, MAX_EXPANSION_BYTES = 2, 65_536
"""An entry may be packed into this multiple of its size and so many bytes more; an honest one never needs them."""


@dataclass(frozen=True)
class _Directory:
    """The central directory. start, size: bytes; count: entries; shift: bytes before the archive, as of a stub that
    unpacks itself"""

    start: int
    size: int
    count: int
    shift: int


class Zip(Archive):
    """A zip of stored or deflated files. The location of an entry is the offset of its local header, its packed bytes,
    its method and its CRC-32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def entries(self) -> Iterator[Entry]:
        """Yield every member. Raises Invalid if the directory is damaged, points outside of the archive, or has two
        entries with the same bytes."""
        with self.path.open("rb") as file:
            try:
                directory = _find_directory(file)
                file.seek(directory.start)
                ranges = []
                for _ in range(directory.count):
                    entry = _read_entry(file, directory)
                    ranges.append(_make_range(entry, directory))
                    yield entry
            except (struct.error, ValueError, OverflowError) as error:
                raise make_refusal(f"it is not a complete zip: {error}") from error
        ranges.sort()
        for (_, end), (start, _) in pairwise(ranges):
            if start < end:
                raise make_refusal(f"two of its entries share the bytes from {start:,} on")

    def iterate_blocks(self, entry: Entry) -> Iterator[bytes]:
        offset, packed, method, crc = entry.location
        if packed > MAX_EXPANSION * entry.size + MAX_EXPANSION_BYTES:
            raise Unreadable("InvalidImageFormat", "the archive is damaged here")
        size = checksum = 0
        with self.path.open("rb") as file:
            file.seek(offset)
            header = file.read(LOCAL.size)
            if len(header) != LOCAL.size or header[:4] != b"PK\x03\x04":
                raise Unreadable("InvalidImageFormat", "the archive has no entry where its directory says so")
            *_, name, extra = LOCAL.unpack(header)
            file.seek(name + extra, os.SEEK_CUR)
            blocks = _iterate_packed(file, packed)
            for block in blocks if method == STORED else _inflate(blocks):
                size, checksum = size + len(block), zlib.crc32(block, checksum)
                if size > entry.size:
                    break
                yield block
        if size != entry.size or checksum != crc:
            raise Unreadable("InvalidImageFormat", "the archive is damaged here")


def _make_range(entry: Entry, directory: _Directory) -> tuple[int, int]:
    """Return where an entry begins, and where it ends at the earliest. Raises Invalid if that is not before the
    directory."""
    start, packed = entry.location[:2]
    end = start + LOCAL.size + packed
    if end > directory.start:
        raise make_refusal(f"{quote_name(entry.name)} has its bytes outside of the archive")
    return start, end


def _iterate_packed(file: BinaryIO, packed: int) -> Iterator[bytes]:
    while packed > 0 and (block := file.read(min(packed, BLOCK_BYTES))):
        packed -= len(block)
        yield block


def _inflate(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack blocks of at most BLOCK_BYTES each, whatever the whole would unpack to. Raises ml.Unreadable."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for packed in blocks:
            plain = inflater.decompress(packed, BLOCK_BYTES)
            while plain:
                yield plain
                plain = inflater.decompress(inflater.unconsumed_tail, BLOCK_BYTES)
            if inflater.eof:
                return
    except zlib.error as error:
        raise Unreadable("InvalidImageFormat", f"the archive is damaged here: {error}") from error


def _find_directory(file: BinaryIO) -> _Directory:
    length = file.seek(0, os.SEEK_END)
    tail_at = max(0, length - END.size - FULL16 - LOCATOR.size)
    file.seek(tail_at)
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise make_refusal("it is not a complete zip: its directory is missing")
    _, disk, first_disk, _, count, size, offset, _ = END.unpack_from(tail, at)
    end = tail_at + at
    if FULL32 in (size, offset) or FULL16 in (count, disk):
        _, _, end, _ = LOCATOR.unpack_from(tail, at - LOCATOR.size)
        if end > length:
            raise make_refusal("it is not a complete zip64: its directory is missing")
        file.seek(end)
        mark, _, _, _, disk, first_disk, _, count, size, offset = END64.unpack(file.read(END64.size))
        if mark != b"PK\x06\x06":
            raise make_refusal("it is not a complete zip64: its directory is missing")
    shift = end - size - offset
    if disk != first_disk or shift < 0:
        raise make_refusal("it is not a complete zip: a part is missing")
    return _Directory(offset + shift, size, count, shift)


def _read_entry(file: BinaryIO, directory: _Directory) -> Entry:
    header = file.read(CENTRAL.size)
    mark, made_by, _, flags, method, _, _, crc, packed, size, *lengths, _, _, attributes, offset = CENTRAL.unpack(
        header
    )
    if mark != b"PK\x01\x02":
        raise make_refusal("it is not a complete zip: its directory is broken")
    raw, extra, _ = (file.read(n) for n in lengths)
    name = clean_path(raw.decode("utf-8" if flags & UTF8 else "cp437", "replace"))
    if flags & ENCRYPTED or method not in (STORED, DEFLATED):
        raise make_refusal(f"{name[:100]!r} is encrypted, or compressed by a method other than deflate")
    size, packed, offset = _read_wide_fields(extra, size, packed, offset)
    mode = attributes >> 16 if made_by >> 8 == UNIX else 0
    return Entry(name, size, packed, _classify(name, mode), (offset + directory.shift, packed, method, crc))


def _read_wide_fields(extra: bytes, *fields: int) -> Iterator[int]:
    """Yield the values of the fields, where a full field is replaced by its 64-bit value in the extra field."""
    wide, start = b"", 0
    while start + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, start)
        wide = extra[start + 4 : start + 4 + length] if tag == 1 else wide
        start += 4 + length
    for field in fields:
        if field == FULL32 and len(wide) >= 8:
            field, wide = struct.unpack_from("<Q", wide)[0], wide[8:]
        yield field


def _classify(name: str, mode: int) -> Kind:
    if stat.S_ISLNK(mode):
        return "link"
    if name.endswith("/") or stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_IFMT(mode) in (0, stat.S_IFREG) else "special"
