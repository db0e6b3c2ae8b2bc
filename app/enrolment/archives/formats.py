"""Recognise the format of an archive by its first bytes, and choose its parser."""

from pathlib import Path
from typing import Literal

from app.enrolment.archives.entries import Archive, make_refusal
from app.enrolment.archives.tars import Tar
from app.enrolment.archives.zips import Zip
from app.errors import NotFound

Format = Literal["tar", "gzip", "zip"]

HEAD_BYTES = 512
GZIP, ZIP, EMPTY_ZIP = b"\x1f\x8b", b"PK\x03\x04", b"PK\x05\x06"


def recognise_format(path: Path) -> Format:
    """Return the format of an archive, of which only the first HEAD_BYTES are read.

    Raises NotFound, or Invalid if the bytes are of no known format.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError as error:
        raise NotFound("the archive no longer exists") from error
    if head.startswith(GZIP):
        return "gzip"
    if head.startswith((ZIP, EMPTY_ZIP)):
        return "zip"
    if head[257:262] == b"ustar" or (head and not head.strip(b"\0")) or _is_old_tar(head):
        return "tar"
    raise make_refusal("its bytes are neither tar, tar.gz nor zip")


def open_parser(path: Path) -> Archive:
    """Return the parser of a tar or zip. Raises NotFound, or Invalid for other bytes and for a gzip inside a gzip."""
    archive_format = recognise_format(path)
    if archive_format == "gzip":
        raise make_refusal("it is a gzip file inside a gzip file")
    return Zip(path) if archive_format == "zip" else Tar(path)


def _is_old_tar(head: bytes) -> bool:
    """Whether this is a tar from before POSIX, which has no magic number but a checksum of its header."""
    try:
        stated = int(head[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return len(head) == HEAD_BYTES and stated == sum(head[:148]) + 8 * 32 + sum(head[156:])
