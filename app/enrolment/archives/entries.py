"""The interface of all kinds of archives, and the checks that all their entries must pass."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from app.errors import Invalid, TooLarge
from ml.errors import Unreadable

Kind = Literal["file", "folder", "link", "special"]

MAX_PATH_CHARACTERS = 1024
HIDDEN_NAMES = ("__MACOSX", "Thumbs.db", "desktop.ini")
DRIVE_PATTERN = re.compile(r"^[A-Za-z]:")
MIN_BYTES_FOR_RATIO = 65_536
"""A smaller entry or archive may have any ratio of unpacked to packed bytes."""


@dataclass(frozen=True)
class ArchiveLimits:
    """The limits of one archive.

    entries: their number; unpacked: bytes of all entries; ratio: unpacked over packed bytes, of one entry and of the
    whole archive; photo: bytes of one photo
    """

    entries: int
    unpacked: int
    ratio: int
    photo: int


@dataclass(frozen=True)
class Entry:
    """A member as its archive lists it. size, packed: bytes; location: numbers by which the archive finds its bytes"""

    name: str
    size: int
    packed: int
    kind: Kind = "file"
    location: tuple[int, ...] = ()

    @property
    def folder(self) -> str | None:
        """The first folder of its path, which names the subject; None if it is in no folder."""
        parts = PurePosixPath(self.name).parts
        return parts[0] if len(parts) > 1 else None


class Archive(ABC):
    """A parser of one format, or a folder. Entries are never written to the disk under their own names.

    size: bytes of the archive as it was sent, by which `filter_entries` judges the whole; None for a folder
    """

    size: int | None = None

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield every member in a fixed order, in bounded memory. Raises Invalid if the archive is broken."""

    @abstractmethod
    def iterate_blocks(self, entry: Entry) -> Iterator[bytes]:
        """Yield the bytes of an entry, a block at a time. Raises ml.Unreadable if it is damaged."""

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        """Return the bytes of an entry. Raises ml.Unreadable if it is damaged or longer than `max_bytes`."""
        if entry.size > max_bytes:
            raise Unreadable("ImageTooLarge", f"the file has {entry.size:,} bytes; the limit is {max_bytes:,}")
        return b"".join(self.iterate_blocks(entry))


def filter_entries(archive: Archive, limits: ArchiveLimits) -> Iterator[Entry]:
    """Yield the entries that are files, without hidden files and those of operating systems.

    Raises Invalid for a path that leads out of the archive, a link or a device; TooLarge if a limit is exceeded.
    """
    count = unpacked = 0
    max_bytes = limits.unpacked
    if archive.size is not None:
        max_bytes = min(max_bytes, max(MIN_BYTES_FOR_RATIO, limits.ratio * archive.size))
    for entry in archive.entries():
        count, unpacked = count + 1, unpacked + entry.size
        if count > limits.entries:
            raise TooLarge(f"the archive has more than {limits.entries:,} entries", code="ArchiveTooLarge")
        if entry.size > MIN_BYTES_FOR_RATIO and entry.size > limits.ratio * max(1, entry.packed):
            detail = f"{quote_name(entry.name)} unpacks to more than {limits.ratio} times its packed size"
            raise TooLarge(detail, code="ArchiveTooLarge")
        if unpacked > max_bytes:
            raise make_size_refusal(max_bytes)
        check_path(entry)
        if entry.kind == "file" and not _is_hidden(entry.name):
            yield entry


def check_path(entry: Entry) -> None:
    """Raises Invalid if the entry is a link or a device, or its path is unsafe or too long."""
    name = entry.name
    if entry.kind in ("link", "special"):
        raise make_refusal(f"{quote_name(name)} is a link or a device; only files and folders are allowed")
    if name.startswith("/") or DRIVE_PATTERN.match(name):
        raise make_refusal(f"{quote_name(name)} has an absolute path")
    if ".." in name.split("/"):
        raise make_refusal(f"{quote_name(name)} leads out of the archive by '..'")
    if not name.strip("/") or "\0" in name or len(name) > MAX_PATH_CHARACTERS:
        raise make_refusal(f"{quote_name(name)} is not a path of 1 to {MAX_PATH_CHARACTERS:,} characters")


def make_refusal(detail: str) -> Invalid:
    """Make the error for an archive that is refused as a whole."""
    return Invalid(f"the archive is refused: {detail}", code="InvalidArchive")


def make_size_refusal(max_bytes: int) -> TooLarge:
    """Make the error for an archive that unpacks to more than `max_bytes`."""
    return TooLarge(f"the archive is refused: it unpacks to more than {max_bytes:,} bytes", code="ArchiveTooLarge")


def quote_name(name: str) -> str:
    """Quote a name for an error message, cut to 100 characters."""
    return repr(name if len(name) < 100 else name[:97] + "...")


def clean_path(name: str) -> str:
    """Return a path with forward slashes, and with every byte that is not valid text replaced."""
    return name.replace("\\", "/").encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix("./")


def _is_hidden(name: str) -> bool:
    return any((part.startswith(".") and part != ".") or part in HIDDEN_NAMES for part in name.split("/"))
