"""Metrics for Prometheus: counts of requests, and gauges that are read from the tables and the engine on demand."""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config import METRICS_VARIABLE
from app.db.tables import POINTERS, Collection, Deployment, Face, Follower, Job
from app.db.visibility import ALL_ROWS
from app.deps.caller import Caller
from app.galleries.damaged_faces import count_damaged_faces
from app.health.readiness import MAX_REUSE_SECONDS, REUSE_FACTOR
from app.queue.messages import ImportArchive
from app.serving.engine import Engine
from app.serving.limits.photo_failures import PHOTO_FAILURES
from app.serving.reporter import is_alive
from app.storage.blob_store import DAMAGED_FILES

LATENCY_BUCKETS_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meter:
    """The request counts and latencies of an API process, or of all that count together, and other metrics of them."""

    def __init__(self, metrics: Iterable[Counter | Histogram] = ()) -> None:
        self.registry = CollectorRegistry()
        kinds = ("method", "route")
        self.seconds = Histogram(
            "likeness_request_seconds",
            "Seconds from the first byte of a request to the last byte of its answer",
            kinds,
            registry=self.registry,
            buckets=LATENCY_BUCKETS_SECONDS,
        )
        self.requests = Counter("likeness_requests", "Answered requests", (*kinds, "status"), registry=self.registry)
        self.face_counts = FaceCounts()
        self._children: dict[tuple[str, str, str], tuple[Callable[[float], None], Callable[[], None]]] = {}
        for metric in (PHOTO_FAILURES, DAMAGED_FILES, *metrics):
            self.registry.register(metric)

    def count_request(self, method: str, route: str, status: str, seconds: float) -> None:
        """Count a request. route: the template of its path"""
        observe, count = self._find_children(method, route, status)
        observe(seconds)
        count()

    def _find_children(
        self, method: str, route: str, status: str
    ) -> tuple[Callable[[float], None], Callable[[], None]]:
        """Return the functions of the metrics with these labels: to look them up takes longer than to count."""
        known = self._children.get((method, route, status))
        if known is None:
            known = self.seconds.labels(method, route).observe, self.requests.labels(method, route, status).inc
            self._children[method, route, status] = known
        return known

    def format(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        if METRICS_VARIABLE not in os.environ:
            return generate_latest(self.registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared)


class FaceCounts:
    """The faces of all collections by role. They are counted for all who ask, since that takes as long as there are
    faces; the counts hold for ten times as long as it took, at most five seconds."""

    def __init__(self) -> None:
        self._lock, self._hold_until = threading.Lock(), -math.inf
        self._rows: list[tuple[str, str, int]] = []

    def read(self, session: Session) -> list[tuple[str, str, int]]:
        """Return the collection, the role and the number of faces. session: may be restricted to collections"""
        with self._lock:
            started_at = time.monotonic()
            if started_at >= self._hold_until:
                self._rows = _count_faces(session)
                counted_at = time.monotonic()
                self._hold_until = counted_at + min(REUSE_FACTOR * (counted_at - started_at), MAX_REUSE_SECONDS)
            return self._rows


def _count_faces(session: Session) -> list[tuple[str, str, int]]:
    counts = select(Face.collection_id, Face.role, func.count()).group_by(Face.collection_id, Face.role)
    deleted = select(Collection.id).where(Collection.is_deleted)
    counts = counts.where(Face.collection_id.not_in(deleted))
    return [
        (collection, role, count) for collection, role, count in session.execute(counts, execution_options=ALL_ROWS)
    ]


class MetricsMiddleware:
    """Counts requests by the template of their route. It is outermost, so that refused requests are counted too."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self.app, self.meter = app, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = "500", time.perf_counter()

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note_status)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self.meter.count_request(scope["method"], route, status, time.perf_counter() - started)


class RequestCounts(Collector):
    """Gauges of the current state. A key that is bound to collections sees only theirs, and none of the process."""

    def __init__(self, session: Session, engine: Engine, caller: Caller, face_counts: FaceCounts) -> None:
        self.session, self.engine, self.caller, self.face_counts = session, engine, caller, face_counts

    def collect(self) -> Iterator[Metric]:
        """Yield one family of gauges after the other."""
        counted = [row for row in self.face_counts.read(self.session) if self._may_see(row[0])]
        yield self._gauge("faces", "Enrolled faces", ("collection", "role"), counted)
        damaged = [row for row in count_damaged_faces(self.session).items() if self._may_see(row[0])]
        yield self._gauge("damaged_faces", "Faces whose stored crops cannot be read", ("collection",), damaged)
        pointers = ("collection", "task", "pointer")
        yield self._gauge(
            "damaged_models", "Pointers to models whose stored files are damaged", pointers, self._list_damaged()
        )
        yield self._gauge(
            "follower_lag", "Changes that a process lags behind", ("process", "collection", "task"), self._read_lag()
        )
        process = self.engine.follower.process
        vectors = (
            (process, served.collection, served.task, model_id, index.state.vectors)
            for served in self.engine.list_deployments()
            for model_id, index in served.indexes.items()
        )
        visible = [row for row in vectors if self._may_see(row[1])]
        labels = ("process", "collection", "task", "model")
        yield self._gauge("index_vectors", "Embeddings in the indexes of the process that answers", labels, visible)
        if not self.caller.collections:
            waiting = [(process, self.engine.count_waiting())]
            yield self._gauge(
                "requests_waiting", "Requests that wait for a slot of the process that answers", ("process",), waiting
            )
            jobs = select(Job.kind, Job.state, func.count()).group_by(Job.kind, Job.state)
            yield self._gauge("jobs", "Jobs by kind and state", ("kind", "state"), self.session.execute(jobs).all())
            failures = select(func.sum(Job.result["photo_failures"].as_integer())).where(Job.kind == ImportArchive.kind)
            yield self._gauge(
                "import_photo_failures",
                "Photos of imports over which a worker raised an error",
                (),
                [(self.session.scalar(failures) or 0,)],
            )

    def _list_damaged(self) -> list[tuple[object, ...]]:
        """List the pointers to damaged models, each with the value 1."""
        models = self.engine.resources.models
        rows = select(Deployment.collection_id, Deployment.task, *(getattr(Deployment, name) for name in POINTERS))
        return [
            (collection, task, pointer, 1)
            for collection, task, *named in self.session.execute(rows)
            for pointer, model in zip(POINTERS, named, strict=True)
            if model is not None and self._may_see(collection) and models.find_damage(model) is not None
        ]

    def _read_lag(self) -> list[tuple[object, ...]]:
        behind = Collection.change - Follower.change
        rows = select(Follower.process, Follower.collection_id, Follower.task, behind)
        rows = rows.join(Collection, Collection.id == Follower.collection_id)
        rows = rows.where(is_alive())
        return [tuple(row) for row in self.session.execute(rows) if self._may_see(row[1])]

    def _may_see(self, collection: str) -> bool:
        return not self.caller.collections or collection in self.caller.collections

    @staticmethod
    def _gauge(name: str, description: str, labels: tuple[str, ...], rows: Iterable[Sequence[object]]) -> Metric:
        gauge = GaugeMetricFamily(f"likeness_{name}", description, labels=labels)
        for *values, count in rows:
            gauge.add_metric([str(v) for v in values], float(str(count)))
        return gauge


def format_metrics(meter: Meter, session: Session, engine: Engine, caller: Caller) -> bytes:
    """Return all metrics in the text format of Prometheus; without those of the process to a key that is bound."""
    gauges = CollectorRegistry()
    gauges.register(RequestCounts(session, engine, caller, meter.face_counts))
    of_process = b"" if caller.collections else meter.format()
    return of_process + generate_latest(gauges)
