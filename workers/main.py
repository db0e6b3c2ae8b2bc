"""A worker: claims the jobs of its lane, one at a time, and keeps their lease alive."""

import argparse
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from app.config import Settings
from app.db.session import writing
from app.db.tables import Job
from app.errors import Busy, problem
from app.queue import jobs
from app.resources import Resources, open_resources
from app.threads import set_threads
from workers.context import Interrupted, JobContext, Later
from workers.handlers import HANDLERS
from workers.schedule import Schedule

log = logging.getLogger("likeness.worker")
GRACE_SECONDS = 5.0
PARENT_SECONDS = 0.5


class Worker:
    """One process, one job at a time."""

    def __init__(self, resources: Resources, lane: str) -> None:
        self.resources, self.lane = resources, lane
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.stopping = threading.Event()
        self.current: JobContext | None = None
        self.promised = 0.0  # when a job that it has put off wants its turn, by the monotonic clock

    def run(self) -> None:
        """Until `stop`. The database may go away and come back."""
        schedule = Schedule(self.resources)
        while not self.stopping.is_set():
            try:
                if self.lane == "work":
                    schedule.tick()
                if not self.step():
                    self.resources.notifier.wait("jobs", self._rest())
            except (OperationalError, Busy) as error:
                log.warning("database.away error=%s", error)
                self.stopping.wait(1)

    def step(self) -> bool:
        """Does one job, if there is one that may be done now."""
        lease = self.resources.settings.lease_seconds
        with writing(self.resources.database) as session:
            job = jobs.claim(session, lane=self.lane, worker=self.name, lease=lease)
        if job is None:
            return False
        self.current = context = JobContext(job.id, self.name, self.resources)
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(context, ended), name="lease", daemon=True)
        keeper.start()
        try:
            self._do(job, context)
        finally:
            ended.set()
            keeper.join()
            self.current = None
        return True

    def _rest(self) -> float:
        """Seconds until it looks again by itself: no longer than it has promised."""
        left, poll = self.promised - time.monotonic(), self.resources.settings.poll_seconds
        return min(left, poll) if left > 0 else poll

    def stop(self, *_: object) -> None:
        """Its job goes back at its next step, and another worker goes on with it."""
        self.stopping.set()
        if self.current is not None:
            self.current.interrupted.set()
        killer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        killer.daemon = True
        killer.start()

    def _keep(self, context: JobContext, ended: threading.Event) -> None:
        lease = self.resources.settings.lease_seconds
        while not ended.wait(lease / 4):
            try:
                with writing(self.resources.database) as session:
                    if not jobs.renew(session, context.job_id, worker=self.name, lease=lease):
                        context.interrupted.set()
            except (OperationalError, Busy) as error:
                log.warning("lease.not_renewed job_id=%s error=%s", context.job_id, error)

    def _do(self, job: Job, context: JobContext) -> None:
        message = jobs.read(job)
        level = logging.DEBUG if job.result else logging.INFO  # an import that waits comes by five times a second
        log.log(level, "job.started job_id=%s kind=%s try=%d", job.id, job.kind, job.tries)
        try:
            result = HANDLERS[type(message)](message, context)
        except Later as later:
            self._put_back(job.id, delay=later.seconds)
            self.promised = time.monotonic() + later.seconds
        except Interrupted:
            self._interrupted(job.id)
        except (OperationalError, Busy) as error:
            log.warning("job.postponed job_id=%s error=%s", job.id, error)
            self._put_back(job.id, delay=1.0)
        except Exception as error:
            self._failed(job.id, error)
        else:
            self._end(job.id, "succeeded", result=result or {})

    def _put_back(self, job_id: str, delay: float = 0.0) -> None:
        with writing(self.resources.database) as session:
            jobs.put_back(session, job_id, worker=self.name, delay=delay)

    def _interrupted(self, job_id: str) -> None:
        with writing(self.resources.database) as session:
            job = session.get(Job, job_id)
            if job is not None and job.cancel:
                jobs.end(session, job_id, "cancelled", worker=self.name)
            else:
                jobs.put_back(session, job_id, worker=self.name)

    def _failed(self, job_id: str, error: Exception) -> None:
        body = problem(error, job_id)
        if body["status"] == 500:
            log.exception("job.failed job_id=%s", job_id)
        self._end(job_id, "failed", problem=body)

    def _end(self, job_id: str, state: str, **values: object) -> None:
        with writing(self.resources.database) as session:
            jobs.end(session, job_id, state, worker=self.name, **values)
        self.resources.notifier.notify("jobs")
        log.info("job.%s job_id=%s", state, job_id)


def watch(parent: int, stop: Callable[[], None]) -> None:
    """A worker whose server was killed stops too, also where that happened before it was up itself."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    log.warning("worker.parent_gone pid=%d", parent)
    stop()


def main() -> None:
    """`python -m workers.main --lane work` (imports, publishing) or `--lane train` (fits, evaluations)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--lane", choices=("work", "train"), default="work")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parent", type=int, help="stop when this process, which started it, is gone")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if arguments.lane == "train":
        os.nice(15)
    set_threads(arguments.threads)
    with open_resources(Settings.from_env(os.environ)) as resources:
        worker = Worker(resources, arguments.lane)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, worker.stop)
        if arguments.parent:
            threading.Thread(target=watch, args=(arguments.parent, worker.stop), name="parent", daemon=True).start()
        worker.run()


if __name__ == "__main__":
    main()
