"""Report training progress: the learning curve and the job's completion. Yield the cores while the API is used."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update

from app.db.session import writing
from app.db.tables import Job, Training
from app.storage.request_timestamp import RequestTimestamp
from app.threads import get_threads, set_threads
from ml.embedders.base import Progress
from workers.context import Interrupted, JobContext

log = logging.getLogger("likeness.training")

REPORT_SECONDS = 0.2
MAX_CURVE_POINTS = 400
PROGRESS_STEPS = 1000
QUIET_SECONDS = 10.0


class ProgressReporter:
    """Store the progress of a job in PROGRESS_STEPS steps, a share for each phase, and notice a cancellation."""

    def __init__(self, context: JobContext, training_id: str | None = None) -> None:
        self.context, self.training_id = context, training_id
        self.curve: list[dict[str, Any]] = []
        self._reported_at = 0.0
        self._threads = get_threads()
        self._traffic = RequestTimestamp(context.resources.settings.home)

    def phase(self, name: str, start: int, end: int) -> Progress:
        """Return the progress callback of a phase from step `start` to step `end`, which raises Interrupted."""
        began, is_begun = time.monotonic(), False

        def report(step: int, steps: int, values: dict[str, float]) -> None:
            nonlocal is_begun
            self.context.check()
            last = step >= steps
            if last:
                log.info(
                    "phase.ended job_id=%s phase=%s seconds=%.1f", self.context.job_id, name, time.monotonic() - began
                )
            if values and (last or not is_begun or self._due()):
                is_begun = True
                self._add({"phase": name, "step": step, "steps": steps, **values})
            if last or self._due():
                self._write(start + (end - start) * step // max(1, steps))

        return report

    def _due(self) -> bool:
        return time.monotonic() - self._reported_at >= REPORT_SECONDS

    def _add(self, point: dict[str, Any]) -> None:
        if len(self.curve) >= MAX_CURVE_POINTS:
            self.curve = self.curve[::2]
        self.curve.append(to_json_values(point))

    def _write(self, done: int) -> None:
        self._reported_at = time.monotonic()
        self.share_cores()
        with writing(self.context.resources.database) as session:
            job = update(Job).where(Job.id == self.context.job_id)
            session.execute(job.values(done=done, total=PROGRESS_STEPS))
            cancelled = session.scalar(select(Job.cancel).where(Job.id == self.context.job_id))
            if self.training_id is not None:
                training = update(Training).where(Training.id == self.training_id)
                session.execute(training.values(curve=self.curve))
        if cancelled or cancelled is None:
            raise Interrupted

    def share_cores(self) -> None:
        """Use one thread while the API is used, and all threads of this process once it has been quiet."""
        threads = self._threads if self._traffic.idle_seconds() > QUIET_SECONDS else 1
        if threads != get_threads():
            set_threads(threads)

    def restore_threads(self) -> None:
        """Give the process its threads again."""
        if get_threads() != self._threads:
            set_threads(self._threads)


@contextmanager
def report_progress(context: JobContext, training_id: str | None = None) -> Iterator[ProgressReporter]:
    """Report the progress of one run of a job; afterwards the process has its threads again."""
    reporter = ProgressReporter(context, training_id)
    try:
        yield reporter
    finally:
        reporter.restore_threads()


def to_json_values(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: to_json_values(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
