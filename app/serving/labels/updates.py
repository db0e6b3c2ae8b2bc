"""Read the labels of a deployment again when they have changed, but not all the time, and beside the follower."""

import time
from collections.abc import Callable, Set
from concurrent.futures import wait
from dataclasses import replace
from functools import partial

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.serving.background_tasks import BackgroundTasks
from app.serving.deployment_rows import DeploymentRow
from app.serving.deployments import DeploymentKey
from app.serving.labels.constraints import ServedConstraints
from app.serving.labels.reader import LabelReader

MAX_READING_WAIT_SECONDS = 0.25
"""So long the follower waits for labels. Most are read by then, and others hold up no other deployment."""


class LabelUpdates:
    """Updates the constraints of all deployments. Only the follower's thread calls it.

    Labels are read as a background task: 200,000 take ten seconds. Until their result is taken, the constraints are
    those of an earlier change, so that searches look up who may be found, and those that ask for the change wait. The
    next reading waits as long as the last one took, so that frequent labels leave half of the time for searches.

    done: announces that labels have been read for which no step waits any more
    """

    def __init__(self, database: Engine, done: Callable[[], None]) -> None:
        self._database, self._done = database, done
        self._tasks = BackgroundTasks(self._announce)
        self._pending: set[DeploymentKey] = set()  # whose labels were still being read when they were last asked for
        self._first: dict[DeploymentKey, ServedConstraints] = {}  # of deployments that are not served yet
        self._readers: dict[DeploymentKey, LabelReader] = {}
        self._created_at: dict[DeploymentKey, float] = {}  # when the collections were made whose labels were read
        self._due_at: dict[DeploymentKey, float] = {}  # when labels may be read again, by the monotonic clock

    def read_first(self, row: DeploymentRow) -> ServedConstraints | None:
        """Return the constraints of a deployment that is not served yet; None while its labels are being read."""
        unlabelled = ServedConstraints()
        if row.label_change <= unlabelled.change:
            return replace(unlabelled, change=row.change)
        if row.key not in self._first:
            constraints = self._read(row, unlabelled.change)
            if constraints is None:
                return None
            self._first[row.key] = constraints
        return self._first[row.key]

    def update(self, constraints: ServedConstraints, row: DeploymentRow) -> ServedConstraints:
        """Return the constraints at the row's change or, while its labels are being read, at the one that began it.

        Return those given until labels are read, or if it is too soon to read them. Raises what the reading raised.
        """
        self._first.pop(row.key, None)
        if row.label_change <= constraints.change:
            return replace(constraints, change=row.change)
        if time.monotonic() < self._due_at.get(row.key, 0.0):
            return constraints
        updated = self._read(row, constraints.change)
        return constraints if updated is None else updated

    def forget(self, key: DeploymentKey) -> None:
        """Drop what has been read of a deployment."""
        self._tasks.discard(key)
        self._pending.discard(key)
        for known in (self._first, self._readers, self._created_at, self._due_at):
            known.pop(key, None)

    def drop_all_but(self, known: Set[tuple[str, str, float]]) -> None:
        """Drop what has been read of deployments that were deleted, also before they were served.

        known: collection, task and when the collection was made, of those that still exist
        """
        for key, created_at in list(self._created_at.items()):
            if (*key, created_at) not in known:
                self.forget(key)

    def _read(self, row: DeploymentRow, change: int) -> ServedConstraints | None:
        """Return the constraints; None while the labels are being read. change: up to which labels are known"""
        self._created_at[row.key] = row.collection_created_at
        reader = self._readers.setdefault(row.key, LabelReader(*row.key))
        read = reader.read_all if row.label_reread_change > change else reader.read_new
        work = partial(self._measure, read, row.change)
        future = self._tasks.start(row.key, work)
        if not self._pending:
            wait([future], MAX_READING_WAIT_SECONDS)
        self._pending.add(row.key)  # a task that ends from now on is announced
        if not future.done():
            return None
        self._pending.discard(row.key)
        result = self._tasks.result(row.key, work)
        assert result is not None, "it has ended"
        constraints, seconds = result
        self._due_at[row.key] = time.monotonic() + seconds
        return constraints

    def _measure(
        self, read: Callable[[Session, int], ServedConstraints], change: int
    ) -> tuple[ServedConstraints, float]:
        """Return the constraints, which may contain later labels than those of the change, and the seconds it took."""
        started = time.monotonic()
        with snapshot(self._database) as session:
            return read(session, change), time.monotonic() - started

    def _announce(self) -> None:
        if self._pending:
            self._done()
