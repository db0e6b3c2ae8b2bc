"""Report to the other processes which change of each deployment this process serves, in the table of followers."""

import time
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress

from sqlalchemy import ColumnElement, Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from app.db.session import writing
from app.db.tables import Collection, Erasure, Follower, now
from app.galleries.erasures import SERVED_BY, strike_out
from app.serving.deployments import DeploymentKey, ServedDeployment

HEARTBEAT_SECONDS = 3.0
MIN_INTERVAL_SECONDS = 0.2
"""While changes come all the time, they are written together, so that writers of the database are rarely held up."""
ALIVE_SECONDS = 15.0
"""A follower without a heartbeat for longer than this does not count: its process has died."""
MAX_REPORT_SECONDS = 15.0
"""How long a process may take to report that it serves a new collection."""

ReportedState = tuple[str, int, int, float]  # model id, change, number of vectors, when the collection was made


class Reporter:
    """Writes the rows of `followers` when they change, and a heartbeat between changes.

    due_in: seconds until rows that wait may be written, None if none wait
    """

    def __init__(self, database: Engine, process: str) -> None:
        self.database, self.process = database, process
        self.due_in: float | None = None
        self._reported: dict[DeploymentKey, ReportedState] = {}
        self._awaited: set[tuple[str, float]] = set()  # collections whose erasures may wait until they are dropped
        self._written_at = self._last_heartbeat_at = float("-inf")

    def report(self, all_served: Iterable[ServedDeployment]) -> None:
        """Write the rows that have changed, or a heartbeat if it is due. Raises Busy.

        Rows are written MIN_INTERVAL_SECONDS after the last ones: until then, `due_in` says when to call again.
        If a collection is deleted meanwhile, nothing is written: the next call does it without the collection.
        The erasures of deleted collections wait for this process until a call without them is written.
        """
        states = {(served.collection, served.task): _describe_state(served) for served in all_served}
        dropped = self._awaited - {(collection, state[-1]) for (collection, _), state in states.items()}
        changed = {key: state for key, state in states.items() if self._reported.get(key) != state}
        if not states and not self._reported and not dropped:
            self.due_in = None
            return
        since_last = time.monotonic() - self._written_at
        is_changed = bool(changed or dropped) or states.keys() != self._reported.keys()
        self.due_in = MIN_INTERVAL_SECONDS - since_last if is_changed and since_last < MIN_INTERVAL_SECONDS else None
        is_heartbeat_due = time.monotonic() - self._last_heartbeat_at > HEARTBEAT_SECONDS
        if self.due_in is not None or not (is_changed or is_heartbeat_due):
            return
        with suppress(StaleDataError, IntegrityError):
            self._write(states, changed, is_heartbeat_due)
        self._strike_out(dropped)

    def _write(
        self,
        states: Mapping[DeploymentKey, ReportedState],
        changed: Mapping[DeploymentKey, ReportedState],
        with_heartbeat: bool,
    ) -> None:
        """Write the rows that have changed, and the time into the others if a heartbeat is due: there may be thousands.

        Raises Busy; on PostgreSQL, StaleDataError or IntegrityError if their collection is deleted meanwhile.
        """
        self._awaited |= {(collection, state[-1]) for (collection, _), state in changed.items()}
        with writing(self.database) as session:
            is_own = Follower.process == self.process
            for collection, task in self._reported.keys() - states.keys():
                session.execute(
                    delete(Follower).where(is_own, Follower.collection_id == collection, Follower.task == task)
                )
            is_living = (Collection.id.in_({c for c, _ in changed}), ~Collection.is_deleted)
            existing = set(session.scalars(select(Collection.id).where(*is_living)))
            of_changed = select(Follower.collection_id, Follower.task).where(
                is_own, Follower.collection_id.in_(existing)
            )
            written = {(collection, task) for collection, task in session.execute(of_changed)}
            at = now()
            rows = [self._make_row(key, state, at) for key, state in changed.items() if key[0] in existing]
            for statement, is_written in ((insert(Follower), False), (update(Follower), True)):
                if chosen := [row for row in rows if ((row["collection_id"], row["task"]) in written) == is_written]:
                    session.execute(statement, chosen)
            unwritten = len(changed) - len(rows)
            if with_heartbeat:
                # only the others: PostgreSQL locks the collection of a row that is written twice, its deletion the row
                others = update(Follower).where(is_own, Follower.seen_at != at).values(seen_at=at)
                unwritten = len(states) - len(rows) - len(session.scalars(others.returning(Follower.task)).all())
        # a sweep may have deleted the rows of this process, if it took it for dead: then write all of them again
        self._reported = {} if unwritten else dict(states)
        self._written_at = time.monotonic()
        if with_heartbeat:
            self._last_heartbeat_at = self._written_at

    def _strike_out(self, dropped: Set[tuple[str, float]]) -> None:
        """Have no erasure of these collections wait for this process any more. Raises Busy."""
        if dropped:
            with writing(self.database) as session:
                strike_out(session, self.process, dropped)
            self._awaited -= dropped

    def has_reported(self, served: ServedDeployment) -> bool:
        """Whether erasures wait until this process serves their changes of the deployment's collection."""
        state = self._reported.get((served.collection, served.task))
        return state is not None and state[-1] == served.collection_created_at

    def _make_row(self, key: DeploymentKey, state: ReportedState, at: float) -> dict[str, object]:
        names = ("collection_id", "task", "model_id", "change", "vectors")
        return {"process": self.process, "seen_at": at, **dict(zip(names, (*key, *state[:-1]), strict=True))}

    def forget(self) -> None:
        """Have all rows written again, since the database may have lost some."""
        self._reported = {}

    def sign_off(self) -> None:
        """Delete the rows of this process. Raises Busy."""
        with writing(self.database) as session:
            session.execute(delete(Follower).where(Follower.process == self.process))
        self._strike_out(set(self._awaited))


def _describe_state(served: ServedDeployment) -> ReportedState:
    champion = served.champion
    return champion.key.model_id, champion.state.change, champion.state.vectors, served.collection_created_at


def is_alive() -> ColumnElement[bool]:
    """Whether a follower has given a sign of life lately.

    One whose time lies in the future does not count: it was written before the clock was set back.
    """
    return Follower.seen_at.between(now() - ALIVE_SECONDS, now() + ALIVE_SECONDS)


def may_be_served(deletion: Erasure) -> bool:
    """Whether a living process that served a collection when it was deleted has not dropped it."""
    return any(abs(now() - seen_at) <= ALIVE_SECONDS for seen_at in deletion.targets.get(SERVED_BY, {}).values())


def have_followers_caught_up(session: Session, collection: str, change: int) -> bool:
    """Whether the index of every process that serves the collection holds this change.

    Until a collection is MAX_REPORT_SECONDS old, every living process is held to serve it, and one at least: it may not
    have reported it yet.
    """
    reported = select(Follower.process).where(Follower.collection_id == collection, is_alive())
    if session.scalar(reported.where(Follower.change < change).limit(1)) is not None:
        return False
    created_at = session.scalar(select(Collection.created_at).where(Collection.id == collection))
    if created_at is None or not 0 <= now() - created_at < MAX_REPORT_SECONDS:
        return True
    living = set(session.scalars(select(Follower.process).where(is_alive()).distinct()))
    return bool(living) and living == set(session.scalars(reported.distinct()))
