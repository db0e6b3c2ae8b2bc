"""Remove uploaded archives that no import uses."""

import time
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import ColumnElement, select

from app.db.session import reading
from app.db.tables import Job
from app.queue.jobs import IS_LIVE
from app.queue.messages import ImportArchive, ImportEmbeddings
from app.resources import Resources
from app.storage.upload_names import has_receiver_ended
from ml.files import get_modified_at
from workers.cleanup.steps import ORPHAN_SECONDS

ENDED_SECONDS = 60.0
"""Uploads of ended processes stay for so long, as a thread or PostgreSQL may still carry out a commit of before."""


def remove_old_uploads(resources: Resources) -> int:
    """Remove the archives that no live import reads and that are old enough, and return their number."""
    used = _list_uploads(resources, IS_LIVE)
    unused = (path for path in resources.uploads.iterdir() if _get_upload_name(path) not in used)
    return _remove(path for path in unused if time.time() - get_modified_at(path) > ORPHAN_SECONDS)


def remove_ended_uploads(resources: Resources) -> int:
    """Remove the archives whose imports have ended, and return their number.

    An import that succeeds or fails removes its archive itself. One that is cancelled, or whose workers died, does not.
    """
    paths = list(resources.uploads.iterdir())
    if not paths:
        return 0
    since = min(map(get_modified_at, paths)) - ORPHAN_SECONDS  # clocks of hosts may differ
    ended = _list_uploads(resources, ~IS_LIVE, Job.finished_at > since)
    return _remove(path for path in paths if _get_upload_name(path) in ended)


def remove_uploads_of(resources: Resources, collections: Iterable[str]) -> int:
    """Remove the archives of these collections whose imports have ended, and return their number."""
    paths = list(resources.uploads.iterdir())
    if not paths:
        return 0
    ended = _list_uploads(resources, ~IS_LIVE, Job.body["collection"].as_string().in_(set(collections)))
    return _remove(path for path in paths if _get_upload_name(path) in ended)


def remove_abandoned_uploads(resources: Resources) -> int:
    """Remove what ended processes received and no live import reads, and return the number of files."""
    latest = time.time() - ENDED_SECONDS
    abandoned = [
        path
        for path in resources.uploads.iterdir()
        if get_modified_at(path) < latest and has_receiver_ended(path, resources.audit)
    ]
    if not abandoned:
        return 0
    used = _list_uploads(resources, IS_LIVE)  # read last: by now nothing of these processes will be committed
    return _remove(path for path in abandoned if _get_upload_name(path) not in used)


def _list_uploads(resources: Resources, *where: ColumnElement[bool]) -> set[str]:
    """List the names of the archives of these imports."""
    with reading(resources.database) as session:
        is_import = Job.kind.in_((ImportArchive.kind, ImportEmbeddings.kind))
        paths = session.scalars(select(Job.body["path"].as_string()).where(is_import, *where))
        return {Path(path).name for path in paths}


def _get_upload_name(path: Path) -> str:
    """Return the name of the upload that this file is, that is unpacked to it, or whose table it is."""
    return path.name.partition(".")[0]


def _remove(paths: Iterable[Path]) -> int:
    chosen = list(paths)
    for path in chosen:
        path.unlink(missing_ok=True)
    return len(chosen)
