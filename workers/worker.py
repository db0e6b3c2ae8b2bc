"""Claim the jobs of one queue, one at a time, and renew their leases while they run."""

import logging
import os
import socket
import threading
import time
from typing import Any

from sqlalchemy.exc import OperationalError

from app.allocator import HeapTrimmer
from app.db.schema import check_own_schema, check_tables, require_newest_schema
from app.db.session import reading, writing
from app.db.tables import Job
from app.errors import Busy, describe_problem
from app.queue import jobs
from app.queue.messages import Message
from app.resources import Resources
from app.serving.home_sharing import check_other_services
from app.startup import CannotStart
from app.storage.audit_log.home_check import check_home_of_database
from ml.errors import FitFailed
from workers.context import Interrupted, JobContext, Later
from workers.handlers import HANDLERS
from workers.schedule import Schedule

log = logging.getLogger("likeness.worker")
GRACE_SECONDS = 5.0
RETRY_SECONDS = 1.0
MAX_RECENT_TURNS = 32
"""Collections with jobs all the time; the turns of more would not be remembered."""


class Worker:
    """Run the jobs of one queue, one at a time."""

    def __init__(self, resources: Resources, queue: str) -> None:
        self.resources, self.queue = resources, queue
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.stopping = threading.Event()
        self.current: JobContext | None = None
        self._knows_database = self._has_run = False
        self._recent_turns: dict[str, None] = {}  # the collections that had a turn, the last one last
        self._has_put_back = False  # after which a part of an import has its turn, however many imports wait
        self.wake_at = 0.0  # when a job that this worker has put back is due, on the monotonic clock

    def run(self) -> None:
        """Run jobs until `stop`. If the database cannot be reached, or the home is gone, try again every second.

        A database that was away may be another one when it is back: it is checked again.
        Raises CannotStart if it belongs to another home, or if a newer version has migrated it.
        """
        schedule, heaps = Schedule(self.resources), HeapTrimmer()
        while not self.stopping.is_set():
            try:
                self.resources.home.check()
                self.check_database()
                if self.queue == "default":
                    self._do_periodic_work(schedule)
                if not self.step():
                    heaps.trim_if_due()
                    self.resources.notifier.wait("jobs", self._seconds_to_wait())
            except (OperationalError, Busy) as error:
                log.warning("database.away error=%s", error)
                self._knows_database = False
                self.stopping.wait(RETRY_SECONDS)
            except CannotStart:
                raise
            except Exception:
                log.exception("worker.step_failed")
                self.stopping.wait(RETRY_SECONDS)

    def check_database(self) -> None:
        """Check that the database has the schema of this version and belongs to the home, if it was away since.

        A worker that has run waits while another service seems to use the home or the database: where all processes go
        over to another database, some do so a little later.

        Raises CannotStart, Busy, OperationalError, DatabaseError.
        """
        if self._knows_database:
            return
        require_newest_schema(self.resources.database)
        check_tables(self.resources.database)
        check_home_of_database(self.resources.database, self.resources.audit_chain)
        self._check_other_services()
        self._knows_database = self._has_run = True

    def _check_other_services(self) -> None:
        try:
            check_other_services(self.resources.database, self.resources.settings.home)
        except CannotStart as fault:
            if self._has_run:
                raise Busy(str(fault)) from fault
            raise

    def _do_periodic_work(self, schedule: Schedule) -> None:
        """Whatever fails in it, jobs go on."""
        try:
            schedule.tick()
        except (OperationalError, Busy) as error:
            log.warning("schedule.postponed error=%s", error)
        except Exception:
            log.exception("schedule.failed")

    def step(self) -> bool:
        """Run one job; False where none is due."""
        lease = self.resources.settings.lease_seconds
        with reading(self.resources.database) as session:
            if not jobs.is_any_due(session, self.queue):
                return False
        with writing(self.resources.database) as session:
            check_own_schema(session)
            job = jobs.claim(
                session,
                queue=self.queue,
                worker=self.name,
                lease=lease,
                parts_first=self._has_put_back,
                recent=list(self._recent_turns),
            )
        self._has_put_back = False
        if job is None:
            return False
        self._note_turn(job.collection_id)
        try:
            message = jobs.read_message(job)
        except Exception as error:
            self.end_failed(job.id, error)
            return True
        self.current = context = JobContext.bind(job, message, self.name, self.resources)
        ended = threading.Event()
        renewer = threading.Thread(target=self._renew_lease, args=(context, ended), name="lease", daemon=True)
        renewer.start()
        try:
            self._handle(job, message, context)
        finally:
            ended.set()
            renewer.join()
            self.current = None
        return True

    def _note_turn(self, collection: str | None) -> None:
        if collection is not None:
            self._recent_turns.pop(collection, None)
            self._recent_turns[collection] = None
        if len(self._recent_turns) > MAX_RECENT_TURNS:
            del self._recent_turns[next(iter(self._recent_turns))]

    def _seconds_to_wait(self) -> float:
        left, poll = self.wake_at - time.monotonic(), self.resources.settings.poll_seconds
        return min(left, poll) if left > 0 else poll

    def stop(self, *_: object) -> None:
        """Stop at the next step of the job, which another worker then takes up. Exit after GRACE_SECONDS anyway."""
        self.stopping.set()
        if self.current is not None:
            self.current.interrupted.set()
        killer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        killer.daemon = True
        killer.start()

    def _renew_lease(self, context: JobContext, ended: threading.Event) -> None:
        lease = self.resources.settings.lease_seconds
        while not ended.wait(lease / 4):
            try:
                with writing(self.resources.database) as session:
                    if not jobs.renew(session, context.job_id, worker=self.name, lease=lease):
                        context.interrupted.set()
            except (OperationalError, Busy) as error:
                log.warning("lease.not_renewed job_id=%s error=%s", context.job_id, error)

    def _handle(self, job: Job, message: Message, context: JobContext) -> None:
        level = logging.DEBUG if job.result else logging.INFO  # an import that waits runs five times a second
        log.log(level, "job.started job_id=%s kind=%s try=%d", job.id, job.kind, job.tries)
        try:
            if not self._is_bound(message):
                raise Interrupted
            result = HANDLERS[type(message)](message, context)
        except Later as later:
            self._put_back(job.id, delay=later.seconds)
            self._has_put_back = True
            self.wake_at = time.monotonic() + later.seconds
        except Interrupted:
            self.end_interrupted(job.id)
        except (OperationalError, Busy) as error:
            log.warning("job.postponed job_id=%s error=%s", job.id, error)
            self._put_back(job.id, delay=RETRY_SECONDS)
        except Exception as error:
            explained = self.resources.home.explain(error) if isinstance(error, OSError) else error
            if isinstance(explained, Busy):
                log.warning("job.postponed job_id=%s error=%s", job.id, error)
                self._put_back(job.id, delay=RETRY_SECONDS)
            elif not self._is_bound(message):  # what it was about to read was deleted
                self.end_interrupted(job.id)
            else:
                self.end_failed(job.id, error)
        else:
            self._end(job.id, "succeeded", result=result or {})

    def _is_bound(self, message: Message) -> bool:
        """Whether the collections that the job works for still exist."""
        with reading(self.resources.database) as session:
            return jobs.is_bound(session, message)

    def _put_back(self, job_id: str, delay: float = 0.0) -> None:
        with writing(self.resources.database) as session:
            jobs.put_back(session, job_id, worker=self.name, delay=delay)

    def end_interrupted(self, job_id: str) -> None:
        """End a job that was cancelled or whose collection was deleted; put others back."""
        with writing(self.resources.database) as session:
            job = session.get(Job, job_id)
            if job is not None and (job.cancel or not jobs.is_bound(session, jobs.read_message(job))):
                jobs.end(session, job_id, "cancelled", worker=self.name)
            else:
                jobs.put_back(session, job_id, worker=self.name)
        self.resources.notifier.notify("jobs")

    def end_failed(self, job_id: str, error: Exception) -> None:
        """End the job with the problem that the error stands for."""
        body = describe_problem(error, job_id)
        if body["status"] == 500 or isinstance(error, FitFailed):
            log.exception("job.failed job_id=%s", job_id)
        self._end(job_id, "failed", problem=body)

    def _end(self, job_id: str, state: str, **values: Any) -> None:
        with writing(self.resources.database) as session:
            jobs.end(session, job_id, state, worker=self.name, **values)
        self.resources.notifier.notify("jobs")
        log.info("job.%s job_id=%s", state, job_id)
