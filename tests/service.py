"""Run the whole service in this process, on a real port and over a real database."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import or_, select

from app.access import keys
from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Follower
from app.deps.server.configuration import configure_server
from app.main import create_app
from app.queue.notifier import Notifier, Topic
from app.resources import Resources, open_resources
from tests.databases import migrate
from tests.openapi_checker import OpenApiChecker
from workers.handlers import erase
from workers.worker import Worker

MAX_START_SECONDS = 60.0
POLL_SECONDS = 0.2
"""To poll four times as often takes a twentieth of a core for each service."""

USUAL_ERASURE_SECONDS = erase.FIRST_DELAY_SECONDS, erase.MIN_RETRY_SECONDS
ERASURE_DELAY_SECONDS, ERASURE_RETRY_SECONDS = 0.1, 0.2
MAX_JOB_POLL_SECONDS = 0.3
"""How long a test waits for a notification before it asks for a job anyway."""


class LinkedNotifier(Notifier):
    """Notifies the others of its group too, as Redis does between processes."""

    def __init__(self, group: list[Notifier]) -> None:
        super().__init__()
        self.group = group
        group.append(self)

    def notify(self, topic: Topic) -> None:
        for notifier in tuple(self.group):
            notifier._deliver(topic)

    def close(self) -> None:
        super().close()
        if self in self.group:
            self.group.remove(self)


@dataclass
class Service:
    """A running service; `client` holds an admin's key.

    after_last_job: the header by which a search sees what the job did that was last waited for
    """

    url: str
    client: httpx.Client
    resources: Resources

    def __post_init__(self) -> None:
        self._jobs_changed = threading.Event()
        self.after_last_job: dict[str, str] = {}
        self.resources.notifier.listen("jobs", self._jobs_changed.set)

    def key(self, role: str, *collections: str) -> dict[str, str]:
        """Create a key and return the header that sends it."""
        with writing(self.resources.database) as session:
            return {"Authorization": f"Bearer {keys.create_key(session, role, 'test', collections)[1]}"}  # type: ignore[arg-type]

    def wait(self, answer: httpx.Response, seconds: float = 60) -> dict[str, Any]:
        """Wait until the job that a 202 names has ended, and return it.

        A worker that ends a job notifies the others. To ask the API all the time would take a tenth of a core.
        """
        assert answer.status_code == 202, answer.text
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._jobs_changed.clear()
            found = self.client.get(answer.headers["Location"])
            if found.json()["finished_at"]:
                self.after_last_job = {
                    name: found.headers[name] for name in ("X-Change-Number",) if name in found.headers
                }
                return dict(found.json())
            self._jobs_changed.wait(MAX_JOB_POLL_SECONDS)
        raise AssertionError(f"the job did not end within {seconds} s: {found.json()}")

    def wait_for_indexes(self, seconds: float = 30) -> None:
        """Wait until searches see every change of every collection."""
        behind = select(Collection.id).join(Deployment, Deployment.collection_id == Collection.id)
        of_deployment = (Follower.collection_id == Collection.id) & (Follower.task == Deployment.task)
        behind = behind.outerjoin(Follower, of_deployment).where(~Collection.is_deleted)
        behind = behind.where(or_(Follower.change.is_(None), Follower.change < Collection.change))
        until = time.monotonic() + seconds
        self.resources.notifier.notify("changes")  # a test may have written rows by itself
        while time.monotonic() < until:
            with reading(self.resources.database) as session:
                if not session.scalars(behind).all():
                    return
            time.sleep(0.03)
        raise AssertionError(f"the indexes did not follow their tables within {seconds} s")


@contextmanager
def run_service(settings: Settings) -> Iterator[Service]:
    """Run the API and one worker for each queue as threads of this process. Each is notified by the other."""
    settings = poll_slowly(settings)
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    with link_notifiers(settings), open_resources(settings) as resources, serve_api(settings) as url:
        workers = [Worker(resources, queue) for queue in ("default", "training")]
        threads = [threading.Thread(target=w.run, daemon=True) for w in workers]
        for thread in threads:
            thread.start()
        with writing(resources.database) as session:
            secret = keys.create_key(session, "admin", "test")[1]
        bearer = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=url, headers=bearer, timeout=60, verify=False) as client:  # reads no certificates
            yield Service(url, client, resources)
        for worker in workers:
            worker.stopping.set()
            if worker.current is not None:
                worker.current.interrupted.set()
        resources.notifier.notify("jobs")  # they wait for none any longer
        for thread in threads:
            thread.join(30)


def poll_slowly(settings: Settings) -> Settings:
    return settings.model_copy(update={"poll_seconds": max(settings.poll_seconds, POLL_SECONDS)})


def hasten_erasures() -> None:
    """Have erasures wait 0.1 s for others, and 0.2 s for what holds them up, instead of 0.5 s and 2 s."""
    erase.FIRST_DELAY_SECONDS, erase.MIN_RETRY_SECONDS = ERASURE_DELAY_SECONDS, ERASURE_RETRY_SECONDS


@contextmanager
def link_notifiers(settings: Settings) -> Iterator[None]:
    """Notify what is opened meanwhile of jobs, changes and keys, unless Redis does."""
    group: list[Notifier] = []
    with pytest.MonkeyPatch.context() as patch:
        if not settings.redis_url:
            patch.setattr("app.resources.Notifier", lambda url: Notifier(url) if url else LinkedNotifier(group))
        yield


@contextmanager
def serve_api(settings: Settings) -> Iterator[str]:
    """Run the API on a free port and yield its URL. Fails if an answer was not as the OpenAPI document says."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        checker = OpenApiChecker(create_app(poll_slowly(settings)))
        server = uvicorn.Server(configure_server(checker, settings))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until = time.monotonic() + MAX_START_SECONDS
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started, "the API did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
        assert not checker.violations, "\n".join(checker.violations)
