"""Remove uploaded archives that no import uses."""

import time
from pathlib import Path

from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Job
from app.queue.jobs import LIVE_STATES
from app.queue.messages import ImportArchive
from app.resources import Resources
from workers.cleanup.steps import ORPHAN_SECONDS


def remove_old_uploads(resources: Resources) -> int:
    """Remove the archives that no live import reads and that are old enough, and return their number."""
    with reading(resources.database) as session:
        live = session.scalars(select(Job.body).where(Job.kind == ImportArchive.kind, Job.state.in_(LIVE_STATES)))
        used = {Path(body["path"]).name for body in live}
    unused = (path for path in resources.uploads.iterdir() if path.name.removesuffix(".part") not in used)
    old = [path for path in unused if time.time() - path.stat().st_mtime > ORPHAN_SECONDS]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)
