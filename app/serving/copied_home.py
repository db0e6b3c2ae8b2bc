"""Notice that the database is used by a service whose home is a copy of this one, or that this one is the copy.

A copy has the same installation key, so that the database seems to belong to it. Photos would lie in either, and an
erasure would not reach both.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine, inspect, select

from app.db.servers.reach import SIGNS_FOLDER
from app.db.session import reading
from app.db.tables import Follower
from app.serving.reporter import ALIVE_SECONDS, is_alive
from app.startup import CannotStart

MAX_SIGN_SECONDS = 5.0
"""So long the next sign of a process may take to be seen, by the way of a file server."""
POLLING_SECONDS = 0.25


def check_no_copy_of_home_serves(database: Engine, home: Path) -> None:
    """Check that the API processes that use the database leave their signs in this home.

    Raises CannotStart, OperationalError, DatabaseError.
    """
    if database.dialect.name == "sqlite" or not inspect(database).has_table(Follower.__tablename__):
        return
    with reading(database) as session:
        processes = session.scalars(select(Follower.process).where(is_alive()).distinct()).all()
    for process in processes:
        if _leaves_signs(process, home / SIGNS_FOLDER):
            continue
        raise CannotStart(
            f"the database is used by the running process {process}, whose home is not {home.resolve()}, but a copy of "
            "it or its original. Give this home a database of its own, or stop that service first; if it was stopped "
            f"just now, or its home moved to another disk, start again in {ALIVE_SECONDS:.0f} seconds"
        )


def _leaves_signs(process: str, folder: Path) -> bool:
    """Whether a process leaves its signs in this folder. One that was copied into it has another inode than it says.

    Some file systems number their files anew for each host: there it has to leave another sign.
    """
    host, pid, *_ = process.rsplit(":", 2)
    signs = [path for path in folder.iterdir() if path.name.startswith(f"{host}-{pid}-")] if folder.is_dir() else []
    if any(_is_original(sign) for sign in signs):
        return True
    until, first = time.monotonic() + MAX_SIGN_SECONDS, _read_times(signs)
    while signs and time.monotonic() < until:
        time.sleep(POLLING_SECONDS)
        if _read_times(signs) != first:
            return True
    return False


def _is_original(sign: Path) -> bool:
    """Whether a sign has the inode that it says. Those of earlier versions say none."""
    with suppress(FileNotFoundError):
        return sign.read_text(encoding="utf-8") in ("", str(sign.stat().st_ino))
    return False


def _read_times(signs: Iterable[Path]) -> list[int]:
    return [sign.stat().st_mtime_ns for sign in signs if sign.exists()]
