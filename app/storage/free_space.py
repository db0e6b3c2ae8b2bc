"""The part of the disk that uploads and snapshots leave to the service, which must go on writing to its database."""

import shutil
from pathlib import Path

MIN_FREE_BYTES = 2**28


def count_free_bytes(folder: Path) -> int:
    """Return how many bytes are free on the disk of a folder."""
    return shutil.disk_usage(folder).free


def has_room(folder: Path, size: int) -> bool:
    """Tell whether so many bytes fit on the disk of a folder, and leave MIN_FREE_BYTES."""
    return size + MIN_FREE_BYTES <= count_free_bytes(folder)


def format_size(size: int) -> str:
    """Return a size for people, in MiB."""
    return f"{size / 2**20:,.0f} MiB"
