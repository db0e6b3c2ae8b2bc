"""Unpack a tar.gz to the tar in it."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from app.enrolment.archives.entries import make_refusal, make_size_refusal

READ_BYTES = 2**20
BYTES_PER_REPORT = 64 * 2**20


def unpack_gzip(path: Path, target: Path, max_bytes: int, report: Callable[[], None]) -> None:
    """Write the bytes in a gzip file to `target`. `report` is called after every BYTES_PER_REPORT.

    Raises Invalid if the file is damaged, TooLarge if it unpacks to more than `max_bytes`, OSError of the disk.
    """
    unpacked_bytes = reported_bytes = 0
    with gzip.open(path) as packed, target.open("wb") as plain:
        while block := _read_block(packed):
            unpacked_bytes += len(block)
            if unpacked_bytes > max_bytes:
                raise make_size_refusal(max_bytes)
            plain.write(block)
            if unpacked_bytes - reported_bytes >= BYTES_PER_REPORT:
                report()
                reported_bytes = unpacked_bytes


def _read_block(packed: gzip.GzipFile) -> bytes:
    try:
        return packed.read(READ_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise make_refusal(f"it is not a complete gzip file: {error}") from error
