"""Read archives of photos: tar, tar.gz, zip, or a folder of the server. The format is recognised by its bytes."""

from itertools import islice
from pathlib import Path

from app.enrolment.archives.entries import Archive, ArchiveLimits, Entry, filter_entries, make_refusal
from app.enrolment.archives.folders import Folder
from app.enrolment.archives.tars import Tar, unpack_gzip
from app.enrolment.archives.zips import Zip
from app.errors import NotFound

__all__ = [
    "Archive",
    "ArchiveLimits",
    "Entry",
    "check_first_entries",
    "filter_entries",
    "is_gzip",
    "open_archive",
    "unpack_gzip",
]

MAX_CHECKED_ENTRIES = 20_000
GZIP, ZIP, EMPTY_ZIP = b"\x1f\x8b", b"PK\x03\x04", b"PK\x05\x06"


def open_archive(path: Path) -> Archive:
    """Open an archive or a folder. Raises NotFound, or Invalid if its bytes are of no known format."""
    if path.is_dir():
        return Folder(path)
    head = _read_head(path)
    if head.startswith((ZIP, EMPTY_ZIP)):
        return Zip(path)
    if head[257:262] == b"ustar" or (head and not head.strip(b"\0")) or _is_old_tar(head):
        return Tar(path)
    raise make_refusal("its bytes are neither tar, tar.gz nor zip")


def is_gzip(path: Path) -> bool:
    return path.is_file() and _read_head(path).startswith(GZIP)


def check_first_entries(path: Path, limits: ArchiveLimits) -> None:
    """Check the first MAX_CHECKED_ENTRIES entries, before an upload is accepted. Raises Invalid, TooLarge."""
    if not is_gzip(path):
        for _ in filter_entries(islice(open_archive(path).entries(), MAX_CHECKED_ENTRIES), limits):
            continue


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except FileNotFoundError as error:
        raise NotFound("the archive no longer exists") from error


def _is_old_tar(head: bytes) -> bool:
    """Whether this is a tar from before POSIX, which has no magic number but a checksum of its header."""
    try:
        stated = int(head[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return len(head) == 512 and stated == sum(head[:148]) + 8 * 32 + sum(head[156:])
