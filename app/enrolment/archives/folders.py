"""Read a folder of the server as an archive."""

import os
from collections.abc import Iterator
from pathlib import Path

from app.enrolment.archives.entries import Archive, Entry, clean_path
from ml.errors import Unreadable


class Folder(Archive):
    """The files of a folder and its subfolders, by name. Links are not followed, since they may lead elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        yield from self._walk(self.path)

    def _walk(self, folder: Path) -> Iterator[Entry]:
        with os.scandir(folder) as listing:
            entries = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in listing if not e.is_symlink())
        for name, is_folder in entries:
            path = folder / name
            if is_folder:
                yield from self._walk(path)
            elif path.is_file():
                size = path.stat().st_size
                yield Entry(clean_path(str(path.relative_to(self.path))), size, size)

    def read(self, entry: Entry, max_bytes: int) -> bytes:
        try:
            file = os.open(self.path / entry.name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise Unreadable("InvalidImageFormat", f"the file cannot be opened: {error.strerror}") from error
        with os.fdopen(file, "rb") as opened:
            data = opened.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise Unreadable("ImageTooLarge", f"the file has more than {max_bytes:,} bytes, the limit for a photo")
        return data
