"""Decide when to measure the sources of a deployment again."""

import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from app.db.session import snapshot
from app.resources import Resources
from app.serving.background_tasks import BackgroundTasks
from app.serving.calibration.schedule import is_importing
from app.serving.compensation import renewal
from app.serving.deployments import DeploymentKey, drop_indexes_of
from app.serving.index_builder import IndexKey
from app.serving.loaded_index import LoadedIndex
from ml.compensation import MIN_FACES_TO_CORRECT

MIN_INTERVAL_SECONDS = 10.0
"""Between two looks at the sources of a gallery."""
REST_RATIO = 10.0
"""After a renewal, the sources of a model rest this many times as long as it took: simulations take many seconds."""


class RenewalSchedule:
    """Starts renewals as background tasks, one at a time, so that indexes can be loaded beside them.

    Only the follower's thread calls it.
    """

    def __init__(self, resources: Resources, tasks: BackgroundTasks, idle_seconds: float) -> None:
        self.resources, self.tasks, self.idle_seconds = resources, tasks, idle_seconds
        self._checked: dict[IndexKey, tuple[float, int]] = {}  # when, by the monotonic clock, and at which change
        self._rests_until: dict[IndexKey, float] = {}  # of version 0, by the monotonic clock
        self._running: Future[object] | None = None

    def renew_if_due(self, index: LoadedIndex) -> None:
        """Look at the sources of a champion if its gallery has changed since the last look and is idle."""
        if index.state.vectors < MIN_FACES_TO_CORRECT and not index.compensation.version:
            return
        now = time.monotonic()
        checked_at, change = self._checked.get(index.key, (float("-inf"), -1))
        is_due = change != index.state.change and now - checked_at > MIN_INTERVAL_SECONDS
        is_idle = now - index.last_change_at > self.idle_seconds
        is_running = self.tasks.busy(("compensate", index)) or not (self._running is None or self._running.done())
        is_resting = now < self._rests_until.get(replace(index.key, compensation=0), float("-inf"))
        if not is_due or not is_idle or is_running or is_resting:
            return
        with snapshot(self.resources.database) as session:
            is_idle = not is_importing(session, index.key.collection)
        if is_idle:
            self._checked[index.key] = now, index.state.change
            self._running = self.tasks.start(("compensate", index), partial(self._renew, index))

    def forget(self, key: DeploymentKey) -> None:
        """Drop what is known of a deployment that is no longer served."""
        for known in (self._checked, self._rests_until):
            drop_indexes_of(key, known)

    def _renew(self, index: LoadedIndex) -> None:
        started = time.monotonic()
        try:
            renewal.renew(self.resources, index)
        finally:
            ended = time.monotonic()
            self._rests_until[replace(index.key, compensation=0)] = ended + REST_RATIO * (ended - started)
