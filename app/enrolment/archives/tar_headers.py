"""Parse the headers of tar archives, POSIX, pax and GNU, each in time that is linear in its length.

The parser of the standard library is not used: its regular expression for pax records takes quadratic time, and it
calls itself once for each extended header.

Layout: POSIX.1-2017, pax, sections "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, section "Basic
Tar Format".
"""

from typing import NamedTuple

from app.enrolment.archives.entries import Kind, make_refusal

BLOCK_BYTES = 512
MAX_NUMBER_DIGITS = 20
REGULAR_TYPES, FOLDER_TYPE, LINK_TYPES = b"0\0007", b"5", b"12"
TYPES_WITHOUT_DATA = b"123456"
PAX_TYPES, GLOBAL_PAX_TYPE, GNU_NAME_TYPE, GNU_LINK_TYPE = b"xX", b"g", b"L", b"K"
EXTENDED_TYPES = PAX_TYPES + GLOBAL_PAX_TYPE + GNU_NAME_TYPE + GNU_LINK_TYPE
"""The types of headers that describe the next member."""
GNU_SPARSE_TYPE = b"S"


class TarHeader(NamedTuple):
    """One header block. type: one byte; size: bytes of the data that follow"""

    name: str
    type: int
    size: int

    @property
    def kind(self) -> Kind:
        if self.type == REGULAR_TYPES[1] and self.name.endswith("/"):
            return "folder"  # as tar wrote them before POSIX
        if self.type in REGULAR_TYPES:
            return "file"
        if self.type in FOLDER_TYPE:
            return "folder"
        return "link" if self.type in LINK_TYPES else "special"


def parse_header(block: bytes, offset: int) -> TarHeader:
    """Parse the header block at this offset of the archive. Raises Invalid if it is damaged."""
    if len(block) < BLOCK_BYTES:
        raise make_refusal("it is cut short")
    stated = _parse_number(block[148:156], offset)
    if stated != sum(block[:148]) + 8 * 32 + sum(block[156:]) and stated != _sum_signed_bytes(block):
        raise make_refusal(f"it is broken at byte {offset:,}")
    name, prefix = decode_text(block[:100]), decode_text(block[345:500])
    if prefix and block[156] not in EXTENDED_TYPES + GNU_SPARSE_TYPE:
        name = f"{prefix}/{name}"
    return TarHeader(name, block[156], _parse_number(block[124:136], offset))


def parse_pax_records(data: bytes, offset: int) -> dict[str, bytes]:
    """Parse the records `length key=value` of an extended header. Raises Invalid if one is damaged."""
    records = {}
    start = 0
    while start < len(data) and data[start]:
        space = data.find(b" ", start, start + MAX_NUMBER_DIGITS)
        digits = data[start:space] if space > 0 else b""
        end = start + int(digits) if digits.isdigit() else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not start < end <= len(data) or not equals or data[end - 1 : end] != b"\n":
            raise make_refusal(f"the extended header at byte {offset:,} is damaged")
        records[decode_text(key)] = value
        start = end
    return records


def decode_text(data: bytes) -> str:
    """Decode a name up to its first zero byte. A byte that is not valid UTF-8 becomes half of a surrogate pair."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _parse_number(field: bytes, offset: int) -> int:
    """Parse an octal number, or a binary one as GNU tar writes numbers that are too long. Raises Invalid."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise make_refusal(f"it is broken at byte {offset:,}")
    return int(digits or b"0", 8)


def _sum_signed_bytes(block: bytes) -> int:
    """Sum a header as some old programs do, which take bytes as numbers from -128 to 127."""
    others = block[:148] + block[156:]
    return sum(others) + 8 * 32 - 256 * sum(byte > 127 for byte in others)
