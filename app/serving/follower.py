"""The thread that makes indexes follow their tables."""

import logging
import os
import socket
import threading
import time
from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from app.db.session import snapshot
from app.db.tables import Collection, Deployment
from app.errors import Busy
from app.resources import Resources
from app.serving.deployment_sync import Keeper, Told
from app.serving.deployments import Key, Registry, Wishes
from app.serving.reporter import Reporter
from app.serving.snapshots import Shelf

log = logging.getLogger("likeness.engine")

AGAIN_SECONDS = 1.0
GRACE_SECONDS = 2.0  # what takes longer when the process ends is left, so that it ends in time
TOLD = select(
    Deployment.collection_id,
    Deployment.task,
    Collection.created_at,
    Collection.change,
    Deployment.version,
    Deployment.updated_at,
    Deployment.champion,
    Deployment.challenger,
    Deployment.previous,
).join(Collection, Collection.id == Deployment.collection_id)


class Follower:
    """One a process, for all deployments. A step may fail: what is held goes on serving, and it is tried again."""

    def __init__(self, resources: Resources, registry: Registry, wishes: Wishes) -> None:
        self.resources, self.registry = resources, registry
        self.process = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid4().hex[:8]}"
        self.shelf = Shelf(resources.indexes)
        self.keeper = Keeper(resources, registry, wishes, self.shelf)
        self.reporter = Reporter(resources.database, self.process)
        self.stepped_at = float("-inf")  # when all deployments were last looked at, by the monotonic clock
        self._not_before: dict[Key, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, puts on the shelf what has changed, and signs off."""
        self._stopping.set()
        self.resources.bell.ring("changes")
        self._thread.join(GRACE_SECONDS)
        self.keeper.chores.finish(GRACE_SECONDS)
        try:
            for held in (h for s in self.registry.all() for h in s.held.values()):
                if not held.changing.locked():
                    self.keeper.save(held)
            self.reporter.sign_off()
        except (OperationalError, Busy, OSError) as error:
            log.warning("follower.not_signed_off error=%s", error)

    def step(self) -> None:
        """Looks at every deployment once. Raises OperationalError where the database is away."""
        with snapshot(self.resources.database) as session:
            told = [Told(*row) for row in session.execute(TOLD)]
        if self.stepped_at < 0:
            self.shelf.keep_only(t.place(g) for t in told for g in t.pointers.values() if g)
        self.keeper.forget_all_but({(t.collection, t.task, t.born) for t in told})
        for deployment in told:
            if not self._stopping.is_set() and time.monotonic() >= self._not_before.get(deployment.key, 0.0):
                self._keep(deployment)
        self.keeper.chores.tidy()
        self.reporter.report(self.registry.all())
        self.stepped_at = time.monotonic()

    def _keep(self, told: Told) -> None:
        """One deployment that cannot be served keeps no other from it."""
        try:
            self.keeper.keep(told)
        except OperationalError:
            raise
        except Exception as error:
            self._not_before[told.key] = time.monotonic() + AGAIN_SECONDS
            log.error("follower.deployment_failed collection=%s task=%s", *told.key, exc_info=error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
                self.resources.bell.wait("changes", self.resources.settings.poll_seconds)
            except (OperationalError, Busy) as error:
                log.warning("follower.database_away error=%s", error)
                self._stopping.wait(AGAIN_SECONDS)
            except Exception as error:
                log.error("follower.step_failed", exc_info=error)
                self._stopping.wait(AGAIN_SECONDS)
