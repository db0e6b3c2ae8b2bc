"""Wait until every live API process serves a published model."""

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Deployment, Follower, now
from app.queue.messages import Publish
from app.serving.reporter import is_alive
from workers.context import JobContext, Later

WAIT_SECONDS = 2.0
"""How long one run of the job waits before it lets other jobs run."""
POLL_SECONDS, RETRY_SECONDS = 0.05, 0.2
GIVE_UP_SECONDS = 600.0


def wait_until_served(context: JobContext, message: Publish, move: Mapping[str, Any]) -> bool:
    """Wait until every live process serves the model, or the pointers have moved on. Returns False after 10 minutes.

    move: the entry that the move left in the history. Raises Later, Interrupted.
    """
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        with reading(context.resources.database) as session:
            if all(_is_served(session, message, task, move["change"]) for task in message.tasks):
                return True
        context.check()
        time.sleep(POLL_SECONDS)
    if now() - move["at"] > GIVE_UP_SECONDS:
        return False
    raise Later(RETRY_SECONDS)


def _is_served(session: Session, message: Publish, task: str, change: int) -> bool:
    deployment = session.get(Deployment, (message.collection, task))
    if deployment is None or message.model not in (deployment.champion, deployment.challenger):
        return True
    of_task = (Follower.collection_id == message.collection, Follower.task == task)
    ready = select(Follower.process).where(*of_task, Follower.change >= change)
    if message.pointer == "champion":
        ready = ready.where(Follower.model_id == message.model)
    return not session.scalar(select(Follower.process).where(is_alive(), Follower.process.not_in(ready)).limit(1))
