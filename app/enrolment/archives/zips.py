"""Read zip and zip64 archives, whose directory is read entry by entry.

The standard library would hold the entries of the whole directory in memory, which may be a million.

Layout: PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16.
"""

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, Entry, Kind, clean_path, make_refusal
from ml.errors import Unreadable

END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
CENTRAL = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
FULL32, FULL16 = 0xFFFFFFFF, 0xFFFF
STORED, DEFLATED = 0, 8
ENCRYPTED, UTF8, UNIX = 1, 0x800, 3


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

    def entries(self) -> Iterator[Entry]:
        with self.path.open("rb") as file:
            try:
                directory = _find_directory(file)
                file.seek(directory.start)
                for _ in range(directory.count):
                    yield _read_entry(file, directory)
            except (struct.error, ValueError) as error:
                raise make_refusal(f"it is not a complete zip: {error}") from error

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        if entry.size > max_bytes:
            raise Unreadable("ImageTooLarge", f"the file has {entry.size:,} bytes; the limit is {max_bytes:,}")
        offset, packed, method, crc = entry.location
        with self.path.open("rb") as file:
            header = os.pread(file.fileno(), LOCAL.size, offset)
            if len(header) != LOCAL.size or header[:4] != b"PK\x03\x04":
                raise Unreadable("InvalidImageFormat", "the archive has no entry where its directory says so")
            *_, name, extra = LOCAL.unpack(header)
            raw = os.pread(file.fileno(), min(packed, 2 * max_bytes), offset + LOCAL.size + name + extra)
        data = raw if method == STORED else _inflate(raw, entry.size)
        if len(data) != entry.size or zlib.crc32(data) != crc:
            raise Unreadable("InvalidImageFormat", "the archive is damaged here")
        return data


def _inflate(raw: bytes, size: int) -> bytes:
    """Unpack at most one byte more than the stated size, whatever the entry would unpack to."""
    try:
        return zlib.decompressobj(-15).decompress(raw, size + 1)
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
    wide = b""
    while len(extra) >= 4:
        tag, length = struct.unpack_from("<2H", extra)
        wide = extra[4 : 4 + length] if tag == 1 else wide
        extra = extra[4 + length :]
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
