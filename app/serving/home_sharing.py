"""Notice that a running service shares this database but not this home, or this home but not this database.

A copy of a home, or of a database, has the same keys as the original, so that each seems to belong to the other. Photos
would lie in either home, and an erasure would not reach both; or the sweep of one service would remove the photos that
the other has accepted.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine, inspect, select

from app.db.servers.reach import SIGNS_FOLDER, describe_database, make_process_name
from app.db.session import reading
from app.db.tables import Follower
from app.serving.reporter import ALIVE_SECONDS, is_alive
from app.startup import CannotStart

MAX_SIGN_SECONDS = 5.0
"""So long the next sign of a process may take to be seen, by the way of a file server."""
MAX_CLOCK_SECONDS = 60.0
"""A sign that was older than this by the clock of this host was not left just now."""
POLLING_SECONDS = 0.25

log = logging.getLogger("likeness.database")


def check_other_services(database: Engine, home: Path) -> None:
    """Check that the running API processes of this database leave their signs in this home, and no others do.

    Nothing is known where this process, which has just reached the database, could leave no sign itself.

    Raises CannotStart, OperationalError, DatabaseError.
    """
    if database.dialect.name == "sqlite" or not inspect(database).has_table(Follower.__tablename__):
        return
    with reading(database) as session:
        processes = session.scalars(select(Follower.process).where(is_alive()).distinct()).all()
        own_database = describe_database(session.connection())
    folder = home / SIGNS_FOLDER
    if not _list_own_signs(make_process_name(), folder):
        log.warning("database.no_signs_compared folder=%s", folder)  # others cannot leave signs there either
        return
    for process in processes:
        if not _leaves_signs(process, folder):
            raise CannotStart(
                f"the database is used by the running process {process}, whose home is not {home.resolve()}, but a "
                "copy of it or its original. Give this home a database of its own, or stop that service first; if it "
                f"was stopped just now, or its home moved to another disk, start again in {ALIVE_SECONDS:.0f} seconds"
            )
    elsewhere = list(_list_signs_elsewhere(folder, own_database)) if own_database else []
    if _has_next_signs(elsewhere) and not set(elsewhere).isdisjoint(_list_signs_elsewhere(folder, own_database)):
        raise CannotStart(
            f"another service runs with the home {home.resolve()}, and with another database. Each would remove photos "
            "that the other has accepted. Check LIKENESS_DATABASE_URL, or give one of them a home of its own"
        )


def _leaves_signs(process: str, folder: Path) -> bool:
    """Whether a process leaves its signs in this folder. One that was copied into it has another inode than it says.

    Some file systems number their files anew for each host: there it has to leave another sign.
    """
    signs = _list_own_signs(process, folder)
    return any(_is_original(sign) for sign in signs) or _has_next_signs(signs)


def _list_signs_elsewhere(folder: Path, own_database: str) -> Iterator[Path]:
    """Yield the latest signs of processes that have reached another database, and not this one since."""
    for sign in _list_signs(folder):
        with suppress(FileNotFoundError):
            _, _, reached = sign.read_text(encoding="utf-8").partition(" ")
            if reached not in ("", own_database) and time.time() - sign.stat().st_mtime < MAX_CLOCK_SECONDS:
                yield sign


def _list_own_signs(process: str, folder: Path) -> list[Path]:
    host, pid, *_ = process.rsplit(":", 2)
    return [path for path in _list_signs(folder) if path.name.startswith(f"{host}-{pid}-")]


def _list_signs(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _is_original(sign: Path) -> bool:
    """Whether a sign has the inode that it says. Those of earlier versions say none."""
    with suppress(FileNotFoundError):
        inode = sign.read_text(encoding="utf-8").partition(" ")[0]
        return inode in ("", str(sign.stat().st_ino))
    return False


def _has_next_signs(signs: Iterable[Path]) -> bool:
    """Whether one of these signs is left again within MAX_SIGN_SECONDS."""
    first, until = _read_times(signs), time.monotonic() + MAX_SIGN_SECONDS
    while first and time.monotonic() < until:
        time.sleep(POLLING_SECONDS)
        if any(at > first.get(sign, at) for sign, at in _read_times(signs).items()):
            return True
    return False


def _read_times(signs: Iterable[Path]) -> dict[Path, int]:
    times = dict[Path, int]()
    for sign in signs:
        with suppress(FileNotFoundError):
            times[sign] = sign.stat().st_mtime_ns
    return times
