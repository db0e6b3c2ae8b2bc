"""Periodic work: free the jobs of dead workers, remove the uploads of ended imports and processes, and
enqueue what is due: sweeps, updates of atlases, trainings."""

import logging
import math
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Job, TrainingPolicy, now
from app.galleries.atlas_updates import enqueue_update, list_outdated_atlases
from app.learning.training_policy import LabelCounts, count_labels, judge_policy, start_due_training
from app.queue import jobs
from app.queue.messages import Sweep
from app.resources import Resources
from workers.cleanup.uploads import remove_abandoned_uploads, remove_ended_uploads
from workers.failures import FailureLog

FREE_SECONDS = 2.0
SWEEP_SECONDS = 600.0
ATLAS_SECONDS = 30.0
RECOUNT_PAUSE_FACTOR = 20.0
"""After counting labels for a policy, the next count waits so many times as long as it took."""

log = logging.getLogger("likeness.schedule")


class Schedule:
    """Every worker of the default queue runs one. Several may do the same work at once.

    A row that cannot be worked on is left out, so that it holds up nothing of other collections.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.freed_at = self.atlases_checked_at = -math.inf  # on the monotonic clock
        self.label_counter = LabelCounter()
        self.failures = FailureLog(log)

    def tick(self) -> None:
        """Do what is due."""
        if time.monotonic() - self.freed_at < FREE_SECONDS:
            return
        self.freed_at = time.monotonic()
        with writing(self.resources.database) as session:
            jobs.free_abandoned(session)
            if _is_sweep_due(session):
                jobs.enqueue(session, Sweep())
        if time.monotonic() - self.atlases_checked_at > ATLAS_SECONDS:
            self.atlases_checked_at = time.monotonic()
            with self.failures.skip_failure("update atlases"):
                self._enqueue_atlas_updates()
        with self.failures.skip_failure("remove uploads"):
            self._remove_uploads()
        with self.failures.skip_failure("start due trainings"):
            self._start_due_trainings()

    def _enqueue_atlas_updates(self) -> None:
        with writing(self.resources.database) as session:
            for atlas in list_outdated_atlases(session):
                with self.failures.skip_failure("update atlas", atlas.collection_id):
                    enqueue_update(session, atlas)

    def _remove_uploads(self) -> None:
        try:
            remove_ended_uploads(self.resources)
            remove_abandoned_uploads(self.resources)
        except OSError as error:
            log.warning("uploads.not_removed error=%s", error)

    def _start_due_trainings(self) -> None:
        """Start the trainings that policies demand. Of several workers that see one due, one starts it."""
        with reading(self.resources.database) as session:
            due = self._list_due(session)
        for key, counts in due:
            with self.failures.skip_failure(f"start training of {key[1]}", key[0]):
                self._start_due_training(key, counts)

    def _start_due_training(self, key: tuple[str, str], counts: LabelCounts) -> None:
        with writing(self.resources.database) as session:
            training = start_due_training(session, self.resources.settings, key, now(), counts)
        if training is not None:
            self.resources.notifier.notify("jobs")
            log.info("policy.started collection=%s task=%s training=%s", *key, training.id)

    def _list_due(self, session: Session) -> list[tuple[tuple[str, str], LabelCounts]]:
        due = list[tuple[tuple[str, str], LabelCounts]]()
        policies = select(TrainingPolicy).where(TrainingPolicy.trigger != "on_demand")
        for policy in session.scalars(policies.order_by(TrainingPolicy.collection_id, TrainingPolicy.task)):
            key = (policy.collection_id, policy.task)
            counts: list[LabelCounts] = []

            def read_counts(key: tuple[str, str] = key, counts: list[LabelCounts] = counts) -> LabelCounts:
                counts.append(self.label_counter.count(session, *key))
                return counts[-1]

            with self.failures.skip_failure(f"judge policy of {key[1]}", key[0]):
                if judge_policy(session, policy, now(), read_counts).state == "due":
                    due.append((key, counts[-1]))
        return due


def _is_sweep_due(session: Session) -> bool:
    """Whether none was enqueued lately.

    One whose time lies in the future does not count: it was enqueued before the clock was set back.
    """
    is_recent = Job.created_at.between(now() - SWEEP_SECONDS, now())
    newest_first = select(Job.id).where(Job.kind == Sweep.kind, is_recent).order_by(Job.id.desc())
    return session.scalar(newest_first.limit(1)) is None  # in another order, all older jobs would be read


class LabelCounter:
    """Count settled labels, and remember the counts until labels change."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, LabelCounts]] = {}
        self._due_at: dict[tuple[str, str], float] = {}  # on the monotonic clock

    def count(self, session: Session, collection: str, task: str) -> LabelCounts:
        """Return the settled pairs. While labels come all the time, a count may be a little old."""
        key = (collection, task)
        change = session.scalar(select(Collection.label_change).where(Collection.id == collection)) or 0
        known = self._counts.get(key)
        started = time.monotonic()
        if known is not None and (known[0] == change or started < self._due_at[key]):
            return known[1]
        counts = count_labels(session, collection, task)
        ended = time.monotonic()
        self._counts[key], self._due_at[key] = (change, counts), ended + RECOUNT_PAUSE_FACTOR * (ended - started)
        return counts
