"""What every kind of archive promises, and what is refused of all of them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from app.config import Settings
from app.errors import Invalid, TooLarge

Kind = Literal["file", "folder", "link", "special"]

LONGEST_PATH = 1024
HIDDEN = ("__MACOSX", "Thumbs.db", "desktop.ini")
DRIVE = re.compile(r"^[A-Za-z]:")
SMALL = 65_536  # bytes; below it a high ratio harms nobody


@dataclass(frozen=True)
class ArchiveLimits:
    """Of one archive. ratio: unpacked over packed bytes."""

    entries: int
    unpacked: int
    ratio: int
    photo: int

    @classmethod
    def of(cls, settings: Settings) -> "ArchiveLimits":
        return cls(
            entries=settings.max_import_entries,
            unpacked=settings.max_import_unpacked_bytes,
            ratio=settings.max_import_ratio,
            photo=settings.max_image_bytes,
        )


@dataclass(frozen=True)
class Entry:
    """A member as its archive lists it. place: what the archive needs to find its bytes again."""

    name: str
    size: int
    packed: int
    kind: Kind = "file"
    place: tuple[int, ...] = ()

    @property
    def folder(self) -> str | None:
        """The first folder of its path: whose photo it is."""
        parts = PurePosixPath(self.name).parts
        return parts[0] if len(parts) > 1 else None


class Archive(ABC):
    """Many files in one. Nothing in it is ever written to a disk under a name of its own."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Every member in a fixed order, in bounded memory. Raises Invalid where the archive is broken."""

    @abstractmethod
    def read(self, entry: Entry, max_bytes: int) -> bytes:
        """Its bytes. Raises ml.Unreadable where it is damaged or longer than `most`."""


def checked(entries: Iterable[Entry], limits: ArchiveLimits) -> Iterator[Entry]:
    """Those entries that are files to look at; hidden and system files are left out.

    Raises Invalid (a path that leads outside, a link, a device), TooLarge (a limit, by name).
    """
    count = unpacked = 0
    for entry in entries:
        count, unpacked = count + 1, unpacked + entry.size
        if count > limits.entries:
            raise TooLarge(f"the archive has more than {limits.entries:,} entries", code="ArchiveTooLarge")
        if unpacked > limits.unpacked:
            raise TooLarge(f"unpacked it has more than {limits.unpacked:,} bytes", code="ArchiveTooLarge")
        if entry.size > SMALL and entry.size > limits.ratio * max(1, entry.packed):
            detail = f"{shown(entry.name)} unpacks to more than {limits.ratio} times its packed size"
            raise TooLarge(detail, code="ArchiveTooLarge")
        check_path(entry)
        if entry.kind == "file" and not _hidden(entry.name):
            yield entry


def check_path(entry: Entry) -> None:
    """Raises Invalid."""
    name = entry.name
    if entry.kind in ("link", "special"):
        raise refused(f"{shown(name)} is a link or a device; only files and folders are taken")
    if name.startswith("/") or DRIVE.match(name):
        raise refused(f"{shown(name)} has an absolute path")
    if ".." in name.split("/"):
        raise refused(f"{shown(name)} leads out of the archive by '..'")
    if not name.strip("/") or "\0" in name or len(name) > LONGEST_PATH:
        raise refused(f"{shown(name)} is not a path of 1 to {LONGEST_PATH:,} characters")


def refused(detail: str) -> Invalid:
    return Invalid(f"the archive is refused: {detail}", code="InvalidArchive")


def shown(name: str) -> str:
    return repr(name if len(name) < 100 else name[:97] + "...")


def clean(name: str) -> str:
    """A path as every database takes it: forward strokes, and no bytes that are not text."""
    return name.replace("\\", "/").encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix("./")


def _hidden(name: str) -> bool:
    return any((part.startswith(".") and part != ".") or part in HIDDEN for part in name.split("/"))
