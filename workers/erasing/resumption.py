"""Take up erasures whose job is gone, and delete what was written late."""

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Erasure, Job, now
from app.galleries.erasures import FINAL
from app.queue.jobs import LIVE_STATES, enqueue
from app.queue.messages import Erase
from app.resources import Resources
from app.serving.index_snapshots import SnapshotStore

LATE_SECONDS = 86_400.0
"""How long after an erasure its snapshots are looked for again."""


def resume_erasures(resources: Resources) -> int:
    """Enqueue a job for each erasure that is not final and has none, and return their number."""
    count = 0
    with writing(resources.database) as session:
        live = select(Job.body).where(Job.kind == Erase.kind, Job.state.in_(LIVE_STATES))
        running = {body.get("erasure") for body in session.scalars(live)}
        unfinished = select(Erasure.id, Erasure.collection_id, Erasure.target).where(Erasure.state != FINAL)
        for erasure, collection, target in session.execute(unfinished).all():
            if erasure not in running:
                enqueue(session, Erase(collection=collection, whole=target == "collection", erasure=erasure))
                count += 1
    return count


def delete_late_snapshots(resources: Resources) -> int:
    """Delete index snapshots that a process wrote while their faces were being erased, and return their number."""
    snapshots = SnapshotStore(resources.indexes)
    recent = select(Erasure.collection_id, Erasure.collection_created_at, Erasure.change)
    with reading(resources.database) as session:
        erased = session.execute(recent.where(Erasure.requested_at > now() - LATE_SECONDS)).all()
    return sum(snapshots.delete_erased(*row) for row in erased)
