"""What trainings of a collection have used of a day's budget, by the table of jobs."""

from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.db.tables import Job
from app.queue.jobs import LIVE_STATES
from app.queue.messages import Train

DAY_SECONDS = 86_400.0


class TrainingRun(NamedTuple):
    """A training that has started or waits. seconds: how long it has run so far"""

    created_at: float
    seconds: float
    is_live: bool


class BudgetUse(NamedTuple):
    """The trainings of a collection in the last 24 hours, whoever asked for them, the oldest first."""

    runs: tuple[TrainingRun, ...]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    @property
    def is_running(self) -> bool:
        """Whether one runs or waits."""
        return any(run.is_live for run in self.runs)

    def find_end(self, max_trainings: int | None, max_seconds: float | None) -> float | None:
        """Return when the budget allows a training again; None: it does now."""
        seconds, count = self.seconds, len(self.runs)
        end = None
        for run in self.runs:
            is_within = (max_trainings is None or count < max_trainings) and (
                max_seconds is None or seconds < max_seconds
            )
            if is_within:
                break
            seconds, count, end = seconds - run.seconds, count - 1, run.created_at + DAY_SECONDS
        return end


def read_budget_use(session: Session, collection: str, at: float) -> BudgetUse:
    """Read the trainings of the 24 hours before `at`. One that was cancelled before it started has used nothing."""
    chosen = select(Job.created_at, Job.started_at, Job.finished_at, Job.state).where(
        Job.kind == Train.kind,
        Job.body["collection"].as_string() == collection,
        or_(Job.state.in_(LIVE_STATES), Job.created_at > at - DAY_SECONDS),
    )
    return BudgetUse(
        tuple(
            TrainingRun(created_at, _count_seconds(started_at, finished_at, at), state in LIVE_STATES)
            for created_at, started_at, finished_at, state in session.execute(chosen.order_by(Job.created_at))
            if started_at is not None or state in LIVE_STATES
        )
    )


def _count_seconds(started_at: float | None, finished_at: float | None, at: float) -> float:
    return 0.0 if started_at is None else max(0.0, (finished_at or at) - started_at)
