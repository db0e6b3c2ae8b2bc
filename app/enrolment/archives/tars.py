"""Read tar archives. A tar.gz is unpacked to a tar first."""

import gzip
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, ArchiveLimits, Entry, Kind, clean_path, make_refusal
from app.errors import TooLarge
from app.storage.blob_store import make_disk_error
from ml.errors import Unreadable
from ml.files import atomic_write

MAX_HEADER_BYTES = 2**20
BLOCK_BYTES = 2**20


class Tar(Archive):
    """Reads header by header, and each file at its offset. The location of an entry is the offset of its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Yield every member. Raises Invalid if a header is broken or the end is missing."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            try:
                with tarfile.open(fileobj=_LimitedReads(file), mode="r:") as tar:  # type: ignore[call-overload]
                    while (member := tar.next()) is not None:
                        tar.members = []  # otherwise this list grows with the archive
                        if member.isreg() and member.offset_data + member.size > size:
                            raise make_refusal("it is cut short")
                        name = clean_path(member.name)
                        yield Entry(name, member.size, member.size, _classify(member), (member.offset_data,))
                    self._check_end(file, tar.offset)
            except (tarfile.TarError, ValueError, OverflowError) as error:
                raise make_refusal(f"it is not a complete tar: {error}") from error

    def _check_end(self, file: BinaryIO, offset: int) -> None:
        """Check that the archive ends here: tarfile stops at a broken header as if it were the end. Raises Invalid."""
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise make_refusal(f"it is broken at byte {offset:,}")

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        if entry.size > max_bytes:
            raise Unreadable("ImageTooLarge", f"the file has {entry.size:,} bytes; the limit is {max_bytes:,}")
        file = os.open(self.path, os.O_RDONLY)
        try:
            data = os.pread(file, entry.size, entry.location[0])
        finally:
            os.close(file)
        if len(data) != entry.size:
            raise Unreadable("InvalidImageFormat", "the archive is cut short here")
        return data


class _LimitedReads:
    """A file that refuses to read headers of more than MAX_HEADER_BYTES into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, count: int) -> bytes:
        if count > MAX_HEADER_BYTES:
            raise make_refusal(f"a header has {count:,} bytes")
        return self.file.read(count)


def _classify(member: tarfile.TarInfo) -> Kind:
    if member.isreg() and not member.issparse():
        return "file"
    if member.isdir():
        return "folder"
    return "link" if member.islnk() or member.issym() else "special"


def unpack_gzip(path: Path, limits: ArchiveLimits) -> None:
    """Replace a tar.gz by the tar in it. Raises Invalid if it is damaged, TooLarge if it unpacks to too many bytes."""
    max_bytes = min(limits.unpacked, limits.ratio * path.stat().st_size)
    unpacked_bytes = 0
    try:
        with gzip.open(path) as packed, atomic_write(path) as plain:
            while block := packed.read(BLOCK_BYTES):
                unpacked_bytes += len(block)
                if unpacked_bytes > max_bytes:
                    raise TooLarge(f"unpacked it has more than {max_bytes:,} bytes", code="ArchiveTooLarge")
                plain.write(block)
    except (EOFError, gzip.BadGzipFile, ValueError) as error:
        raise make_refusal(f"it is not a complete gzip file: {error}") from error
    except OSError as error:
        raise make_disk_error(error) from error
