"""Many photos in one upload: tar, tar.gz, zip, or a folder of the server; told by the bytes."""

from itertools import islice
from pathlib import Path

from app.enrolment.archives.entries import Archive, ArchiveLimits, Entry, checked, refused
from app.enrolment.archives.folders import Folder
from app.enrolment.archives.tars import Tar, unpack_gzip
from app.enrolment.archives.zips import Zip
from app.errors import NotFound

__all__ = ["Archive", "ArchiveLimits", "Entry", "check_first", "checked", "is_gzip", "open_archive", "unpack_gzip"]

FIRST_LOOK = 20_000
GZIP, ZIP, EMPTY_ZIP = b"\x1f\x8b", b"PK\x03\x04", b"PK\x05\x06"


def open_archive(path: Path) -> Archive:
    """Raises NotFound, Invalid (nothing that we know by its bytes)."""
    if path.is_dir():
        return Folder(path)
    head = _head(path)
    if head.startswith((ZIP, EMPTY_ZIP)):
        return Zip(path)
    if head[257:262] == b"ustar" or (head and not head.strip(b"\0")) or _old_tar(head):
        return Tar(path)
    raise refused("it is neither tar, tar.gz nor zip by its bytes")


def is_gzip(path: Path) -> bool:
    return path.is_file() and _head(path).startswith(GZIP)


def check_first(path: Path, limits: ArchiveLimits) -> None:
    """What can be told of an upload before it is accepted: the first 20,000 entries. Raises Invalid, TooLarge."""
    if not is_gzip(path):
        for _ in checked(islice(open_archive(path).entries(), FIRST_LOOK), limits):
            continue


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except FileNotFoundError as error:
        raise NotFound("the archive is not there any more") from error


def _old_tar(head: bytes) -> bool:
    """A tar from before POSIX has no mark, but a sum of its header."""
    try:
        stated = int(head[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return len(head) == 512 and stated == sum(head[:148]) + 8 * 32 + sum(head[156:])
