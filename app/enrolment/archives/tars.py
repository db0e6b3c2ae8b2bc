"""Read tar archives."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, Entry, clean_path, make_refusal
from app.enrolment.archives.tar_headers import (
    BLOCK_BYTES,
    EXTENDED_TYPES,
    GLOBAL_PAX_TYPE,
    GNU_NAME_TYPE,
    PAX_TYPES,
    TYPES_WITHOUT_DATA,
    TarHeader,
    decode_text,
    parse_header,
    parse_pax_records,
)
from ml.errors import Unreadable

MAX_HEADER_BYTES = 16_384
"""An extended header may hold a long path and attributes of the file; tar itself sets no limit."""
MAX_EXTENDED_HEADERS = 8
READ_BYTES = 2**20


class Tar(Archive):
    """Reads header by header, and each file at its offset. The location of an entry is the offset of its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def entries(self) -> Iterator[Entry]:
        """Yield every member. Raises Invalid if a header is broken or longer than MAX_HEADER_BYTES, or the end is
        missing."""
        with self.path.open("rb") as file:
            offset, described = 0, _Description()
            while block := _read_block(file, offset):
                header, data = parse_header(block, offset), offset + BLOCK_BYTES
                if header.type in EXTENDED_TYPES:
                    described.add(header, self._read_extended_header(file, header, offset), offset)
                    offset = data + _round_up(header.size)
                    continue
                entry = described.apply(header, data)
                has_data = entry.kind != "folder" and header.type not in TYPES_WITHOUT_DATA
                offset = data + (_round_up(entry.size) if has_data else 0)
                if has_data and data + entry.size > (self.size or 0):
                    raise make_refusal("it is cut short")
                yield entry
                described = _Description()
        if described.header_count:
            raise make_refusal("it ends after an extended header")

    def _read_extended_header(self, file: BinaryIO, header: TarHeader, offset: int) -> bytes:
        if header.size > MAX_HEADER_BYTES:
            raise make_refusal(
                f"the header at byte {offset:,} has {header.size:,} bytes; at most {MAX_HEADER_BYTES:,} are allowed"
            )
        file.seek(offset + BLOCK_BYTES)
        data = file.read(header.size)
        if len(data) != header.size:
            raise make_refusal("it is cut short")
        return data

    def iterate_blocks(self, entry: Entry) -> Iterator[bytes]:
        remaining = entry.size
        with self.path.open("rb", buffering=0) as file:
            file.seek(entry.location[0])
            while remaining:
                block = file.read(min(remaining, READ_BYTES))
                if not block:
                    raise Unreadable("InvalidImageFormat", "the archive is cut short here")
                remaining -= len(block)
                yield block


class _Description:
    """What extended headers say of the member that follows them."""

    def __init__(self) -> None:
        self.header_count = 0
        self.name: str | None = None
        self.size: int | None = None
        self.is_sparse = False

    def add(self, header: TarHeader, data: bytes, offset: int) -> None:
        """Take in one extended header. Raises Invalid."""
        self.header_count += 1
        if self.header_count > MAX_EXTENDED_HEADERS:
            raise make_refusal(f"it has more than {MAX_EXTENDED_HEADERS} extended headers in a row")
        if header.type in GNU_NAME_TYPE:
            self.name = decode_text(data)
        elif header.type in PAX_TYPES + GLOBAL_PAX_TYPE:
            records = parse_pax_records(data, offset)
            if header.type in GLOBAL_PAX_TYPE and records.keys() & {"path", "size"}:
                raise make_refusal("a header gives all its members one path or size")
            self.is_sparse = self.is_sparse or any(key.startswith("GNU.sparse.") for key in records)
            if "path" in records:
                self.name = records["path"].decode("utf-8", "surrogateescape")
            if "size" in records:
                self.size = _parse_size(records["size"], offset)

    def apply(self, header: TarHeader, data: int) -> Entry:
        """Return the member with this header, whose data begin at this offset."""
        if self.name is not None:
            header = header._replace(name=self.name)
        size = header.size if self.size is None else self.size
        kind = "special" if self.is_sparse else header.kind
        name = header.name.rstrip("/") if kind == "folder" else header.name
        return Entry(clean_path(name), size, size, kind, (data,))


def _read_block(file: BinaryIO, offset: int) -> bytes:
    """Return the header block at this offset; nothing at the end of the archive, which is a block of zeros or that of
    the file."""
    file.seek(offset)
    block = file.read(BLOCK_BYTES)
    return block if block.strip(b"\0") else b""


def _parse_size(value: bytes, offset: int) -> int:
    if not value.isdigit() or len(value) > 20:
        raise make_refusal(f"the extended header at byte {offset:,} is damaged")
    return int(value)


def _round_up(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
