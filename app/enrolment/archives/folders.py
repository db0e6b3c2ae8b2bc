"""Read a folder of the server as an archive."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.enrolment.archives.entries import Archive, Entry, clean_path, make_refusal
from ml.errors import Unreadable

READ_BYTES = 2**20


class Folder(Archive):
    """The files of a folder and its subfolders, by name. Links are not followed, since they may lead elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        """Yield every file. Raises Invalid if a folder cannot be read."""
        stack = [self._iterate_folder(self.path)]
        while stack:
            path, is_folder = next(stack[-1], (None, False))
            if path is None:
                stack.pop()
            elif is_folder:
                stack.append(self._iterate_folder(path))
            elif (size := _measure_file(path)) is not None:
                yield Entry(clean_path(str(path.relative_to(self.path))), size, size)

    def _iterate_folder(self, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Yield the files and folders in a folder by name, and whether each is a folder."""
        try:
            with os.scandir(folder) as listing:
                entries = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in listing if not e.is_symlink())
        except OSError as error:
            raise make_refusal(f"its folder {folder.name!r} cannot be read: {error.strerror}") from error
        for name, is_folder in entries:
            yield folder / name, is_folder

    def iterate_blocks(self, entry: Entry) -> Iterator[bytes]:
        with self._open(entry) as file:
            while block := file.read(READ_BYTES):
                yield block

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        with self._open(entry) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise Unreadable("ImageTooLarge", f"the file has more than {max_bytes:,} bytes, the limit for a photo")
        return data

    def _open(self, entry: Entry) -> BinaryIO:
        try:
            file = os.open(self.path / entry.name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise Unreadable("InvalidImageFormat", f"the file cannot be opened: {error.strerror}") from error
        return os.fdopen(file, "rb")


def _measure_file(path: Path) -> int | None:
    """Return the size of a regular file; None if it is none, or has been removed meanwhile."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
