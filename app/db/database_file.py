"""Notice that the file of a SQLite database is not the one that this process opened any more."""

import os
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, make_url

from app.errors import Busy

DATABASE_MOVED = "the database of this service was moved, deleted or replaced while it ran"


class OpenedPath:
    """A file or folder as it was when it was opened, by its device and inode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identify(path)

    def is_same(self) -> bool:
        """Whether the path still names what was opened. If it named nothing then, whatever is first there counts."""
        current = _identify(self.path)
        if self._identity is None:
            self._identity = current
        return current is not None and current == self._identity


def find_database_path(url: str) -> Path | None:
    """Return the path of a SQLite file; None if the address is that of a server or of a database in memory."""
    address = make_url(url)
    if address.get_backend_name() != "sqlite" or not address.database or address.database == ":memory:":
        return None
    return Path(address.database)


def watch_database_file(database: Engine, path: Path) -> None:
    """Let no transaction begin or end once the file is another: what it writes would be lost. They raise Busy.

    No connection then makes a new, empty file either.
    """
    opened: list[OpenedPath] = []

    def note_opened(*_: Any) -> None:
        if not opened:
            opened.append(OpenedPath(path))

    def check_file(*_: Any) -> None:
        if opened and not opened[0].is_same():
            raise Busy(f"{DATABASE_MOVED}; nothing of this request was stored")

    event.listen(database, "do_connect", check_file)
    event.listen(database, "connect", note_opened)
    event.listen(database, "begin", check_file)
    event.listen(database, "commit", check_file)


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
