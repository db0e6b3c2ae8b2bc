"""Read and write tars of any number of files in the same memory."""

import tarfile
from collections.abc import Iterator

MEMBERS_PER_FORGETTING = 1_000
"""A tarfile remembers every member, in about 1 KiB; its list is emptied this often."""


def iterate_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar that is read. Raises OSError, tarfile.TarError."""
    for count, member in enumerate(tar, 1):
        yield member
        forget_members(tar, count)


def forget_members(tar: tarfile.TarFile, count: int) -> None:
    """Have a tar forget its members from time to time. count: how many were read, or written"""
    if count % MEMBERS_PER_FORGETTING == 0:
        tar.members = []  # type: ignore[attr-defined]
