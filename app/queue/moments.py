"""Put events in order where clocks were set back, or where those of several hosts differ."""

import math
from typing import get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Erasure, Evaluation, Job, KeptSnapshot, StoredResponse, now
from app.db.visibility import ALL_ROWS
from app.queue.jobs import LIVE_STATES
from app.queue.messages import QueueName


def find_creation_moment(session: Session, collection: str) -> float:
    """Return when a new collection counts as created: later than all that a deleted one of its name has left.

    By their times, the jobs, audit entries and erasures of the other one are told from its own.
    """
    deletions = select(Erasure.id).where(Erasure.collection_id == collection, Erasure.target == "collection").limit(1)
    was_deleted = session.scalar(deletions, execution_options=ALL_ROWS) is not None
    return math.nextafter(find_latest_moment(session), math.inf) if was_deleted else now()


def find_latest_moment(session: Session, *known: float | None) -> float:
    """Return the time or, if rows were written at a later one, the latest of theirs.

    A clock that was ahead for a while leaves such rows. What is ordered against them, as an erasure is against the jobs
    that may name what it erases, must not seem to be earlier. known: times of further rows
    """
    newest = [select(row.created_at).order_by(row.id.desc()).limit(1) for row in (Job, Evaluation, KeptSnapshot)]
    started = select(func.max(Job.started_at)).where(Job.queue.in_(get_args(QueueName)), Job.state.in_(LIVE_STATES))
    stored = [*newest, started, select(func.max(StoredResponse.created_at))]
    moments = [session.scalar(chosen, execution_options=ALL_ROWS) for chosen in stored]
    return max(moment for moment in (now(), *known, *moments) if moment is not None)
