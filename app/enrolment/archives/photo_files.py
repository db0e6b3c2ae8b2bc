"""The files of an import: those of a folder, read here, or those of an archive, parsed in a process of its own."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.config import Settings
from app.enrolment.archives.entries import (
    MIN_BYTES_FOR_RATIO,
    Archive,
    ArchiveLimits,
    Entry,
    filter_entries,
    make_refusal,
)
from app.enrolment.archives.folders import Folder
from app.enrolment.archives.formats import recognise_format
from app.enrolment.archives.manifest_rows import read_manifest_rows
from app.enrolment.archives.parser_client import ParserCrashed, run_parser
from app.enrolment.archives.parser_request import ParserRequest, Task
from app.enrolment.archives.tars import Tar
from app.errors import TooLarge
from ml.errors import Unreadable
from ml.files import sync_path

PARSER_BYTES = 512 * 2**20
PARSER_BYTES_PER_ENTRY, PARSER_BYTES_PER_PHOTO_BYTE = 256, 8
"""Address space of a parser: a basis, and what the limits on entries and photos add."""
MIN_BYTES_PER_CPU_SECOND = 4 * 2**20
"""A parser that is slower than this has met a hostile archive."""

Photo = bytes | Unreadable
Message = tuple[dict[str, Any], bytes]


class PhotoFiles(ABC):
    """The files of an import. Files that are hidden, and those of operating systems, are left out."""

    @abstractmethod
    def list_files(self) -> Iterator[Entry]:
        """Yield all files in a fixed order. Raises Invalid, TooLarge or NotFound, perhaps after the last one."""

    @abstractmethod
    def iterate_manifest_rows(self, entry: Entry) -> Iterator[dict[str, Any]]:
        """Yield the rows of the manifest in this entry. Raises Invalid, TooLarge."""

    @abstractmethod
    def iterate_photos(self, entries: Iterable[Entry]) -> Generator[Photo, None, None]:
        """Yield the bytes of each entry, in their order, or why it cannot be read."""


class FolderFiles(PhotoFiles):
    """The files of a folder of the server."""

    def __init__(self, path: Path, limits: ArchiveLimits) -> None:
        self._folder, self._limits = Folder(path), limits

    def list_files(self) -> Iterator[Entry]:
        return filter_entries(self._folder, self._limits)

    def iterate_manifest_rows(self, entry: Entry) -> Iterator[dict[str, Any]]:
        return read_manifest_rows(self._folder, entry, self._limits.entries)

    def iterate_photos(self, entries: Iterable[Entry]) -> Generator[Photo, None, None]:
        return (_read_photo(self._folder, entry, self._limits.photo) for entry in entries)


class ArchiveFiles(PhotoFiles):
    """The files of a tar, tar.gz or zip.

    A parser lists them. Photos in a tar are read here, as bytes at an offset; those in a zip are read by a parser.
    check: called while this waits for a parser, and may raise
    """

    def __init__(self, path: Path, settings: Settings, check: Callable[[], None]) -> None:
        self._path, self._settings, self._check = path, settings, check
        self._limits = make_limits(settings)

    def list_files(self) -> Iterator[Entry]:
        """Yield all files. A tar.gz is replaced by the tar in it before. Raises Busy too, if the disk is full."""
        if recognise_format(self._path) == "gzip":
            self._unpack()
        for message, _ in self._run("list"):
            for name, size, packed, location in message["entries"]:
                yield Entry(name, size, packed, location=tuple(location))

    def iterate_manifest_rows(self, entry: Entry) -> Iterator[dict[str, Any]]:
        for message, _ in self._run("manifest", entries=(entry,)):
            yield from message["rows"]

    def iterate_photos(self, entries: Iterable[Entry]) -> Generator[Photo, None, None]:
        if recognise_format(self._path) == "tar":
            archive = Tar(self._path)
            yield from (_read_photo(archive, entry, self._limits.photo) for entry in entries)
            return
        remaining, has_retried = tuple(entries), False
        while remaining:
            count = 0
            try:
                for message, data in self._run("read", entries=remaining):
                    count += 1
                    yield data if "photo_bytes" in message else Unreadable(*message["unreadable"])
            except (ParserCrashed, TooLarge) as error:
                if count == 0 and isinstance(error, ParserCrashed) and not has_retried:
                    has_retried = True  # a signal from outside may have ended it, as where memory is short
                    continue
                if count == 0:  # even a fresh parser could not read this photo
                    yield Unreadable("InvalidImageFormat", error.detail)
                    count = 1
            remaining, has_retried = remaining[count:], False

    def _unpack(self) -> None:
        max_bytes = min(self._limits.unpacked, max(MIN_BYTES_FOR_RATIO, self._limits.ratio * self._path.stat().st_size))
        target = self._path.with_name(f"{self._path.name}.{uuid4().hex}.part")
        try:
            for _ in self._run("unpack", target=str(target), file_bytes=max_bytes):
                self._check()
            if recognise_format(target) == "gzip":
                raise make_refusal("it is a gzip file inside a gzip file")
            sync_path(target)
            target.replace(self._path)
            sync_path(self._path.parent)
        finally:
            target.unlink(missing_ok=True)

    def _run(self, task: Task, **values: Any) -> Iterator[Message]:
        settings = self._settings
        seconds = settings.archive_timeout_seconds
        request = ParserRequest(
            task,
            str(self._path),
            self._limits,
            memory_bytes=PARSER_BYTES
            + PARSER_BYTES_PER_ENTRY * settings.max_import_entries
            + PARSER_BYTES_PER_PHOTO_BYTE * settings.max_image_bytes,
            cpu_seconds=math.ceil(seconds + self._path.stat().st_size / MIN_BYTES_PER_CPU_SECOND),
            **values,
        )
        return run_parser(request, seconds, self._check)


def open_photo_files(path: Path, settings: Settings, check: Callable[[], None]) -> PhotoFiles:
    """Return the files of a folder or an archive. Nothing is read before they are asked for."""
    return FolderFiles(path, make_limits(settings)) if path.is_dir() else ArchiveFiles(path, settings, check)


def make_limits(settings: Settings) -> ArchiveLimits:
    """Return the limits that the settings state."""
    return ArchiveLimits(
        entries=settings.max_import_entries,
        unpacked=settings.max_import_unpacked_bytes,
        ratio=settings.max_import_ratio,
        photo=settings.max_image_bytes,
    )


def _read_photo(archive: Archive, entry: Entry, max_bytes: int) -> Photo:
    try:
        return archive.read(entry, max_bytes)
    except Unreadable as error:
        return error
