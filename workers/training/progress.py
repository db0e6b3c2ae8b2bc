"""How far a training is: its curve and its job's progress, a few times a second, and its share of the cores."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update

from app.db.session import writing
from app.db.tables import Job, Training
from app.serving.traffic import RequestTimestamp
from app.threads import get_threads, set_threads
from ml.embedders.base import Progress
from workers.context import Interrupted, JobContext

log = logging.getLogger("likeness.training")

TELL_SECONDS = 0.2
POINTS = 400
WHOLE = 1000
QUIET_SECONDS = 10.0


class Telling:
    """Each phase has its share of the bar, which has 1,000 steps. Hears a cancel each time that it tells."""

    def __init__(self, context: JobContext, training_id: str | None = None) -> None:
        self.context, self.training_id = context, training_id
        self.curve: list[dict[str, Any]] = []
        self._told = 0.0
        self._threads = get_threads()
        self._traffic = RequestTimestamp(context.resources.settings.home)

    def phase(self, name: str, start: int, end: int) -> Progress:
        """The progress of one phase, which takes the bar from `start` to `end`. Raises Interrupted."""
        began = time.monotonic()

        def tell(step: int, steps: int, values: dict[str, float]) -> None:
            self.context.check()
            last = step >= steps
            if last:
                log.info(
                    "phase.ended job_id=%s phase=%s seconds=%.1f", self.context.job_id, name, time.monotonic() - began
                )
            if values and (last or self._due()):
                self._add({"phase": name, "step": step, "steps": steps, **values})
            if last or self._due():
                self._write(start + (end - start) * step // max(1, steps))

        return tell

    def _due(self) -> bool:
        return time.monotonic() - self._told >= TELL_SECONDS

    def _add(self, point: dict[str, Any]) -> None:
        if len(self.curve) >= POINTS:
            self.curve = self.curve[::2]
        self.curve.append(plain(point))

    def _write(self, done: int) -> None:
        self._told = time.monotonic()
        self.share_cores()
        with writing(self.context.resources.database) as session:
            ours = update(Job).where(Job.id == self.context.job_id).values(done=done, total=WHOLE)
            session.execute(ours)
            cancelled = session.scalar(select(Job.cancel).where(Job.id == self.context.job_id))
            if self.training_id is not None:
                mine = update(Training).where(Training.id == self.training_id)
                session.execute(mine.values(curve=self.curve))
        if cancelled or cancelled is None:
            raise Interrupted

    def share_cores(self) -> None:
        """One thread while the API serves, all that this process was given once it has been quiet."""
        wanted = self._threads if self._traffic.idle_seconds() > QUIET_SECONDS else 1
        if wanted != get_threads():
            set_threads(wanted)

    def give_back(self) -> None:
        if get_threads() != self._threads:
            set_threads(self._threads)


@contextmanager
def telling(context: JobContext, training_id: str | None = None) -> Iterator[Telling]:
    """For one run of one job; afterwards the process has its threads again."""
    told = Telling(context, training_id)
    try:
        yield told
    finally:
        told.give_back()


def plain(value: Any) -> Any:
    """The same for JSON, which has neither NaN nor infinity: None in their stead."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
