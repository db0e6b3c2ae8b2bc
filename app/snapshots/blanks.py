"""Overwrite members of a snapshot's tar where they stand: an erasure then costs what it erases, not the whole tar."""

import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from app.snapshots.tar_members import iterate_members
from ml.files import sync_path

BLANKED, BLANKING = "blanked", "being-blanked"
"""The names of a member that was overwritten, and of one whose bytes may still be there."""
ZEROS = bytes(2**20)
HEADER_BYTES = tarfile.BLOCKSIZE


def blank_members(path: Path, kept: Collection[str]) -> int:
    """Overwrite all members but these with zeros, names included, and return how many. The file keeps its size.

    A second run completes what a first one has begun. Raises OSError, tarfile.TarError.
    """
    regions = list(_list_regions(path, kept))
    with path.open("r+b") as file:
        for start, end in regions:
            _write_header(file, start, end, BLANKING)
            file.seek(start + HEADER_BYTES)
            remaining = end - start - HEADER_BYTES
            while remaining:
                remaining -= file.write(ZEROS[:remaining])
            _write_header(file, start, end, BLANKED)
    if regions:
        sync_path(path)
    return len(regions)


def _list_regions(path: Path, kept: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield where each member that is not kept starts, with its extended header, and where it ends."""
    with tarfile.open(path, "r:") as tar:
        for member in iterate_members(tar):
            if member.name not in kept and member.name != BLANKED:
                blocks = -(-member.size // tarfile.BLOCKSIZE)
                yield member.offset, member.offset_data + blocks * tarfile.BLOCKSIZE


def _write_header(file: BinaryIO, start: int, end: int, name: str) -> None:
    """Write the header of one member that fills a region."""
    member = tarfile.TarInfo(name)
    member.size = end - start - HEADER_BYTES
    file.seek(start)
    file.write(member.tobuf(tarfile.GNU_FORMAT))
    file.flush()
