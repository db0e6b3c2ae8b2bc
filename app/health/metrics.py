"""Figures for Prometheus: requests as they pass, and what the tables and the engine say when it looks."""

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db.tables import Collection, Face, Follower, Job, now
from app.deps.caller import Caller
from app.serving.engine import Engine
from app.serving.reporter import ALIVE_SECONDS

BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meter:
    """Counts of one API process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kinds = ("method", "route")
        self.seconds = Histogram(
            "likeness_request_seconds",
            "From the first byte to the last",
            kinds,
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.requests = Counter("likeness_requests", "Answered", (*kinds, "status"), registry=self.registry)


class MetricsMiddleware:
    """Outermost: what the door refuses is counted too. A route is counted by its template, never by the path sent."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self.app, self.meter = app, meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = "500", time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self.meter.seconds.labels(scope["method"], route).observe(time.perf_counter() - started)
            self.meter.requests.labels(scope["method"], route, status).inc()


class RequestCounts(Collector):
    """Gauges of one look. A key that is bound to collections sees those alone."""

    def __init__(self, session: Session, engine: Engine, caller: Caller) -> None:
        self.session, self.engine, self.caller = session, engine, caller

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("faces", "Enrolled", ("collection", "role"), self._faces())
        yield self._gauge(
            "follower_lag", "Changes that a process is behind", ("process", "collection", "task"), self._lag()
        )
        held = (
            (s.collection, s.task, g, h.state.vectors)
            for s in self.engine.list_deployments()
            for g, h in s.indexes.items()
        )
        shown = [row for row in held if self._may(row[0])]
        yield self._gauge("index_vectors", "Held by this process", ("collection", "task", "model"), shown)
        yield self._gauge("requests_waiting", "For a slot", (), [(self.engine.slots.waiting,)])
        if not self.caller.collections:
            jobs = select(Job.kind, Job.state, func.count()).group_by(Job.kind, Job.state)
            yield self._gauge("jobs", "By kind and state", ("kind", "state"), self.session.execute(jobs).all())

    def _faces(self) -> list[tuple[object, ...]]:
        counted = select(Face.collection_id, Face.role, func.count()).group_by(Face.collection_id, Face.role)
        return [tuple(row) for row in self.session.execute(counted) if self._may(row[0])]

    def _lag(self) -> list[tuple[object, ...]]:
        behind = Collection.change - Follower.change
        rows = select(Follower.process, Follower.collection_id, Follower.task, behind)
        rows = rows.join(Collection, Collection.id == Follower.collection_id)
        rows = rows.where(Follower.seen_at > now() - ALIVE_SECONDS)
        return [tuple(row) for row in self.session.execute(rows) if self._may(row[1])]

    def _may(self, collection: str) -> bool:
        return not self.caller.collections or collection in self.caller.collections

    @staticmethod
    def _gauge(name: str, description: str, labels: tuple[str, ...], rows: Iterable[Sequence[object]]) -> Metric:
        gauge = GaugeMetricFamily(f"likeness_{name}", description, labels=labels)
        for *values, count in rows:
            gauge.add_metric([str(v) for v in values], float(str(count)))
        return gauge


def exposition(meter: Meter, session: Session, engine: Engine, caller: Caller) -> bytes:
    """In Prometheus's text format."""
    seen = CollectorRegistry()
    seen.register(RequestCounts(session, engine, caller))
    return generate_latest(meter.registry) + generate_latest(seen)
