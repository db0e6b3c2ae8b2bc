"""The thread that keeps the loaded indexes up to date with their tables."""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.allocator import HeapTrimmer
from app.db.schema import check_own_schema
from app.db.servers.reach import make_process_name, read_clock
from app.db.session import snapshot
from app.db.written_changes import forget_written_changes
from app.errors import Busy
from app.resources import Resources
from app.serving.deployment_rows import DeploymentRow, read_deployments
from app.serving.deployment_sync import DeploymentSync
from app.serving.deployments import DeploymentKey, RecentlyRequested, Registry
from app.serving.faces.lost_faces import DatabaseIdentity, identify_database
from app.serving.index_snapshots import SnapshotStore
from app.serving.reporter import Reporter
from app.startup import CannotStart

log = logging.getLogger("likeness.engine")

RETRY_SECONDS = 1.0
WATCH_SECONDS = 0.5
MAX_STOP_SECONDS = 2.0
"""Work that takes longer is left unfinished, so that the process ends in time."""


class IndexFollower:
    """The follower of a process, for all deployments. If a step fails, the indexes still serve, and it retries."""

    def __init__(self, resources: Resources, registry: Registry, recently_requested: RecentlyRequested) -> None:
        self.resources, self.registry = resources, registry
        self.process = make_process_name()
        self.snapshots = SnapshotStore(resources.indexes)
        self.reporter = Reporter(resources.database, self.process)
        self.sync = DeploymentSync(resources, registry, recently_requested, self.snapshots, self.reporter)
        self.last_step_at = float("-inf")  # when all deployments were last checked, by the monotonic clock
        self._not_before: dict[DeploymentKey, float] = {}
        self._failures: dict[DeploymentKey, str] = {}  # the last error of each that has failed
        self._identity: DatabaseIdentity | None = None  # of the database whose rows were read last
        self.when_outdated: Callable[[CannotStart], None] = lambda _: None  # ends the process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._watch = threading.Thread(target=self._watch_reach, name="reach-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self.resources.reach is not None:
            self._watch.start()

    def stop(self) -> None:
        """End the thread, save the indexes that have changed, and delete this process's rows of `followers`."""
        self._stopping.set()
        self.resources.notifier.notify("changes")
        self._thread.join(MAX_STOP_SECONDS)
        self.sync.tasks.finish(MAX_STOP_SECONDS)
        try:
            for index in (index for served in self.registry.all() for index in served.indexes.values()):
                if not index.update_lock.locked():
                    self.sync.save(index)
            self.reporter.sign_off()
        except (OperationalError, Busy, OSError) as error:
            log.warning("follower.not_signed_off error=%s", error)

    def step(self) -> None:
        """Check every deployment once.

        Raises OperationalError if the database cannot be reached, CannotStart if a newer version has migrated it.
        """
        began_at = read_clock()
        with snapshot(self.resources.database) as session:
            check_own_schema(session)
            identity = identify_database(session)
            rows = read_deployments(session)
        if identity != self._identity:
            self._take_out_lost(rows)
            self._identity = identity
        if self.last_step_at < 0:
            used = (row.index_key(model_id) for row in rows for model_id in row.pointers.values() if model_id)
            self.snapshots.delete_all_but(used)
        self._not_before = {key: at for key, at in self._not_before.items() if at > time.monotonic()}
        self._failures = {row.key: self._failures[row.key] for row in rows if row.key in self._failures}
        self.sync.drop_all_but({(row.collection, row.task, row.collection_created_at) for row in rows})
        with snapshot(self.resources.database) as session:  # a transaction begins with the first question
            # first those that are prepared, before labels of others are read
            for row in sorted(rows, key=lambda row: row.key not in self.sync.prepared):
                if not self._stopping.is_set() and row.key not in self._not_before:
                    self._synchronise(session, row)
        if self.resources.reach is not None:
            self.resources.reach.note_caught_up(began_at)
        self.sync.tasks.tidy()
        self.reporter.report((*self.registry.all(), *self.sync.prepared.values()))
        self.last_step_at = time.monotonic()

    def _take_out_lost(self, rows: list[DeploymentRow]) -> None:
        """Compare all that is served with the tables of another server, or of a dump that was put back."""
        forget_written_changes(self.resources.database)
        self.reporter.forget()
        with snapshot(self.resources.database) as session:
            for row in rows:
                self.sync.take_out_lost(session, row)

    def _synchronise(self, session: Session, row: DeploymentRow) -> None:
        """Synchronise one deployment. Its failure does not stop the others."""
        try:
            self.sync.synchronise(session, row)
        except (OperationalError, Busy):
            raise
        except Exception as error:
            session.rollback()  # PostgreSQL answers nothing more in a transaction with a failed statement
            self._not_before[row.key] = time.monotonic() + RETRY_SECONDS
            self._log_failure(row.key, error)

    def _log_failure(self, key: DeploymentKey, error: Exception) -> None:
        """Log an error that is not the last one of the deployment, and the traceback of one that no other has.

        A damaged model fails all its deployments, at each attempt.
        """
        failure = f"{type(error).__name__}: {error}"
        if self._failures.get(key) == failure:
            return
        traceback = None if failure in self._failures.values() else error
        self._failures[key] = failure
        log.error("follower.deployment_failed collection=%s task=%s error=%s", *key, failure, exc_info=traceback)

    def _give_up(self, error: CannotStart) -> None:
        """Serve nothing any more, since what the tables mean is not known, and have the process end."""
        log.error("follower.gave_up error=%s", error)
        for served in self.registry.all():
            self.registry.drop((served.collection, served.task))
        self._stopping.set()
        self.when_outdated(error)

    def _watch_reach(self) -> None:
        """Notice that the follower waits for an answer that does not come."""
        assert self.resources.reach is not None
        while not self._stopping.wait(WATCH_SECONDS):
            self.resources.reach.note_silence()

    def _pause(self, began_at: float) -> float:
        """Return after how many seconds the next step is due though nobody tells of a change.

        began_at: when the last one began, by the monotonic clock; while it ran, others may have changed more
        """
        if self.resources.reach is not None and self.resources.reach.find_fault():
            return 0.0  # the last step began before the database was back
        if any(map(self.reporter.has_reported, self.sync.prepared.values())):
            return 0.0  # they can be served now
        poll = max(0.0, began_at + self.resources.settings.poll_seconds - time.monotonic())
        return poll if self.reporter.due_in is None else min(poll, self.reporter.due_in)

    def _run(self) -> None:
        heaps = HeapTrimmer()
        while not self._stopping.is_set():
            began_at = time.monotonic()
            try:
                self.step()
                heaps.trim_if_due()  # of all threads of the process: this one looks at it now and then anyway
                self.resources.notifier.wait("changes", self._pause(began_at))
            except (OperationalError, Busy) as error:
                log.warning("follower.database_away error=%s", error)
                if self.resources.reach is not None:
                    self.resources.reach.note_loss()
                self._stopping.wait(RETRY_SECONDS)
            except CannotStart as error:
                self._give_up(error)
            except Exception as error:
                log.error("follower.step_failed", exc_info=error)
                self._stopping.wait(RETRY_SECONDS)
