"""tar, plain; one that was packed by gzip is unpacked first."""

import gzip
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, ArchiveLimits, Entry, Kind, clean, refused
from app.errors import TooLarge
from app.storage.atomic_write import atomic_write
from app.storage.blob_store import disk_error
from ml.errors import Unreadable

LONGEST_HEADER = 2**20
STEP = 2**20


class Tar(Archive):
    """Listed header by header; each file is read where it lies. place: the offset of its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Raises Invalid where a header is broken or the end is missing."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            try:
                with tarfile.open(fileobj=_Careful(file), mode="r:") as tar:  # type: ignore[call-overload]
                    while (member := tar.next()) is not None:
                        tar.members = []  # the list would grow with the archive
                        if member.isreg() and member.offset_data + member.size > size:
                            raise refused("it is cut short")
                        name = clean(member.name)
                        yield Entry(name, member.size, member.size, _kind(member), (member.offset_data,))
                    self._check_end(file, tar.offset)
            except (tarfile.TarError, ValueError, OverflowError) as error:
                raise refused(f"it is not a whole tar: {error}") from error

    def _check_end(self, file: BinaryIO, offset: int) -> None:
        """tarfile stops at a broken header as it does at the end."""
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise refused(f"it is broken at byte {offset:,}")

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        if entry.size > max_bytes:
            raise Unreadable("ImageTooLarge", f"{entry.size:,} bytes; at most {max_bytes:,} are taken")
        file = os.open(self.path, os.O_RDONLY)
        try:
            data = os.pread(file, entry.size, entry.place[0])
        finally:
            os.close(file)
        if len(data) != entry.size:
            raise Unreadable("InvalidImageFormat", "the archive is cut short here")
        return data


class _Careful:
    """A file that refuses to read a header of many megabytes into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, count: int) -> bytes:
        if count > LONGEST_HEADER:
            raise refused(f"a header has {count:,} bytes")
        return self.file.read(count)


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.isreg() and not member.issparse():
        return "file"
    if member.isdir():
        return "folder"
    return "link" if member.islnk() or member.issym() else "special"


def unpack_gzip(path: Path, limits: ArchiveLimits) -> None:
    """A tar.gz becomes the tar that it holds, in its place. Raises Invalid, TooLarge."""
    max_bytes = min(limits.unpacked, limits.ratio * path.stat().st_size)
    done = 0
    try:
        with gzip.open(path) as packed, atomic_write(path) as plain:
            while block := packed.read(STEP):
                done += len(block)
                if done > max_bytes:
                    raise TooLarge(f"unpacked it has more than {max_bytes:,} bytes", code="ArchiveTooLarge")
                plain.write(block)
    except (EOFError, gzip.BadGzipFile, ValueError) as error:
        raise refused(f"it is not a whole gzip file: {error}") from error
    except OSError as error:
        raise disk_error(error) from error
