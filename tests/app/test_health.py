"""Health probes, metrics and versions."""

import re
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import anyio
import anyio.to_thread
import httpx
import numpy as np
import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session
from starlette.routing import Route

from app.access import keys
from app.config import Settings
from app.db.session import writing
from app.db.tables import Collection, Embedding
from app.deps.admission.work import Work, classify_work
from app.health import metrics, service
from app.health.metrics import FaceCounts
from app.main import create_app
from app.resources import Resources
from app.serving import index_builder
from app.serving.engine import open_engine
from app.serving.faces import face_table_loader
from app.serving.index_builder import IndexKey
from app.serving.index_loader import IndexLoader
from tests.rows import GalleryWriter, make_model, people
from tests.service import serve_api

MODEL = make_model("m-one")


@pytest.fixture
def gallery(resources: Resources) -> GalleryWriter:
    made = GalleryWriter(resources).make(MODEL)
    rows, subjects = people(10, 2)
    made.add({MODEL.id: rows}, subjects)
    return made


@pytest.fixture
def api(settings: Settings, gallery: GalleryWriter) -> Iterator[httpx.Client]:
    """The API alone, with a reader's client."""
    with serve_api(settings) as url, httpx.Client(base_url=url, headers=key(gallery), timeout=30) as client:
        yield client


def key(gallery: GalleryWriter, *collections: str) -> dict[str, str]:
    with writing(gallery.resources.database) as session:
        return {"x-api-key": keys.create_key(session, "reader", "test", collections)[1]}


def ready(api: httpx.Client, wanted: int = 200) -> dict[str, object]:
    limit = time.monotonic() + 30
    while True:
        answer = api.get("/readyz", headers={"x-api-key": ""})
        if answer.status_code == wanted:
            return dict(answer.json())
        assert time.monotonic() < limit, answer.text
        time.sleep(0.05)


def test_the_service_is_ready_only_when_every_face_has_an_embedding_and_an_index_entry(
    api: httpx.Client, gallery: GalleryWriter
) -> None:
    assert api.get("/livez", headers={"x-api-key": ""}).json() == {"status": "ok"}
    assert ready(api) == {"status": "ok", "reasons": []}
    with writing(gallery.resources.database) as session:
        session.execute(delete(Embedding).where(Embedding.face_pk == gallery.pks[0]))
    assert "20 rows, 19 vectors" in str(ready(api, 503)["reasons"])
    gallery.remove(gallery.pks[:1])
    assert ready(api)["reasons"] == []


def test_the_probe_counts_few_rows_again_however_many_deployments_there_are(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that has changed is always compared with its table; of 30 that have not, a few at a time."""
    names = [f"many-{number:02}" for number in range(30)]
    made = [GalleryWriter(gallery.resources, name).make(MODEL) for name in names]
    counted: list[str] = []
    count_rows = index_builder.count_rows
    monkeypatch.setattr(service, "MAX_RECOMPARED", 4)
    monkeypatch.setattr(service, "RECOMPARE_SECONDS", 0.0)
    with open_engine(gallery.resources) as engine:
        limit = time.monotonic() + 30
        while service.list_unready_reasons(engine) or len(engine.list_deployments()) <= len(names):
            assert time.monotonic() < limit, "a collection without a face is ready before it is loaded"
            time.sleep(0.05)
        probing = threading.get_ident()

        def count_and_note(session: Session, key: IndexKey) -> tuple[int, int]:
            if threading.get_ident() == probing:  # the follower counts the rows of an index that it loads anew
                counted.append(key.collection)
            return count_rows(session, key)

        monkeypatch.setattr(index_builder, "count_rows", count_and_note)
        for probe in range(1, 17):
            assert service.list_unready_reasons(engine) == []
            assert 4 * probe <= len(counted) <= 4 * probe + 8, "four each, and a few that have changed"
        assert {*names} <= {*counted}, "each has its turn"
        counted.clear()
        made[7].add({MODEL.id: np.ones((1, 8), np.float32)}, [None])
        while engine.registry.get((names[7], "identity")).champion.state.vectors < 1:  # type: ignore[union-attr]
            time.sleep(0.02)
        assert service.list_unready_reasons(engine) == []
        assert names[7] in counted


def test_the_process_is_alive_while_all_request_threads_are_busy(settings: Settings) -> None:
    async def ask() -> int:
        app = httpx.ASGITransport(create_app(settings))
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = 1
        async with threads, httpx.AsyncClient(transport=app, base_url="http://likeness") as client:
            with anyio.fail_after(10):
                return (await client.get("/livez")).status_code

    assert anyio.run(ask) == 200


def test_no_route_is_built_by_a_request(
    settings: Settings, gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> list[int]:
        app, built = create_app(settings), []
        async with app.router.lifespan_context(app):
            monkeypatch.setattr("fastapi.routing.get_dependant", lambda **_: built.append(1))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://likeness") as client:
                answers = [await client.get(path) for path in ("/livez", "/v1/none", "/docs")]
        assert not built
        return [answer.status_code for answer in answers]

    assert anyio.run(ask) == [200, 404, 200]


def test_the_service_stays_ready_while_faces_are_enrolled(api: httpx.Client, gallery: GalleryWriter) -> None:
    ready(api)
    for i in range(20):
        gallery.add({MODEL.id: np.full((1, 8), i, np.float32)}, [None])
        assert api.get("/readyz").status_code == 200
    ready(api)


def test_an_index_that_lost_a_face_is_repaired(api: httpx.Client, gallery: GalleryWriter) -> None:
    ready(api)
    with writing(gallery.resources.database) as session:
        row = session.get_one(Embedding, (MODEL.id, "identity", gallery.pks[0]))
        vector = row.vector
        session.delete(row)
    ready(api, 503)
    time.sleep(0.3)
    with writing(gallery.resources.database) as session:
        session.add(Embedding(model_id=MODEL.id, task="identity", face_pk=gallery.pks[0], vector=vector))
    ready(api)


def test_metrics_need_a_key_and_cover_only_its_collections(api: httpx.Client, gallery: GalleryWriter) -> None:
    ready(api)
    api.get("/v1/collections/staff")
    api.get("/v1/collections/nobody")
    assert api.get("/metrics", headers={"x-api-key": ""}).status_code == 401
    for i in range(3):
        api.get(f"/v1/jobs/guess{i}/", headers={"x-api-key": ""})
    text = api.get("/metrics").text
    assert "guess" not in text, "anybody could add series without end"
    assert 'likeness_faces{collection="staff",role="gallery"} 20.0' in text
    index_vectors = r'likeness_index_vectors\{collection="staff",model="m-one",process="[^"]+",task="identity"\} 20\.0'
    assert re.search(index_vectors, text)
    assert re.search(r'likeness_requests_waiting\{process="[^"]+"\} 0\.0', text)
    assert 'likeness_requests_total{method="GET",route="/v1/collections/{collection}",status="404"} 1.0' in text
    assert 'likeness_request_seconds_bucket{le="10.0",method="GET",route="/v1/collections/{collection}"} 2.0' in text
    assert "likeness_follower_lag{" in text
    of_others = api.get("/metrics", headers=key(gallery, "other")).text
    assert "staff" not in of_others
    assert not re.search(r"^likeness", of_others, re.MULTILINE), "what the whole process does"
    of_its_own = api.get("/metrics", headers=key(gallery, "staff")).text
    assert 'likeness_faces{collection="staff",role="gallery"} 20.0' in of_its_own
    figures = re.findall(r"^likeness_.*$", of_its_own, re.MULTILINE)
    assert figures
    assert all('collection="staff"' in figure for figure in figures)


def test_the_info_page_lists_the_version_and_the_loaded_deployments(api: httpx.Client, gallery: GalleryWriter) -> None:
    ready(api)
    info = api.get("/info").json()
    [deployment] = info["deployments"]
    assert (deployment["collection"], deployment["model"], deployment["vectors"]) == ("staff", "m-one", 20)
    assert info["version"] != "unknown"
    assert api.get("/info", headers=key(gallery, "other")).json()["deployments"] == []


def test_the_service_stays_ready_while_collections_without_faces_are_made(gallery: GalleryWriter) -> None:
    """There is nothing to load for them. A client that made them in a loop kept the service from being ready."""
    with open_engine(gallery.resources) as engine:
        limit = time.monotonic() + 30
        while not engine.list_deployments():
            assert time.monotonic() < limit
            time.sleep(0.02)
        for number in range(20):
            GalleryWriter(gallery.resources, f"empty-{number:02}").make(MODEL)
            assert service.list_unready_reasons(engine) == []
        while len(engine.list_deployments()) < 21:
            assert time.monotonic() < limit
            time.sleep(0.02)


def test_nothing_is_read_to_serve_a_collection_without_faces(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexLoader, "load", lambda *_, **__: pytest.fail("nothing is to be loaded"))
    monkeypatch.setattr(face_table_loader, "load_table", lambda *_: pytest.fail("nothing is to be loaded"))
    made = [GalleryWriter(gallery.resources, f"empty-{number}").make(MODEL) for number in range(3)]
    gallery.remove(gallery.pks)
    with writing(gallery.resources.database) as session:
        session.delete(session.get_one(Collection, gallery.collection))
    with open_engine(gallery.resources) as engine:
        limit = time.monotonic() + 30
        while len(engine.list_deployments()) < len(made):
            assert time.monotonic() < limit
            time.sleep(0.02)
        made[0].add({MODEL.id: np.ones((1, 8), np.float32)}, [None])
        while sum(served.champion.state.vectors for served in engine.list_deployments()) < 1:
            assert time.monotonic() < limit
            time.sleep(0.02)
        assert service.list_unready_reasons(engine) == []


def test_faces_are_counted_once_for_all_who_ask_for_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as there are faces, in whichever collections: a reader of one collection slowed all others."""
    clock, counted = [100.0], list[float]()

    def count(_: object) -> list[tuple[str, str, int]]:
        clock[0] += 0.2
        counted.append(clock[0])
        return [("staff", "gallery", len(counted))]

    monkeypatch.setattr(metrics, "_count_faces", count)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    counts, session = FaceCounts(), Session()
    assert [counts.read(session) for _ in range(100)] == [[("staff", "gallery", 1)]] * 100
    clock[0] += 2.01
    assert counts.read(session) == [("staff", "gallery", 2)]


def test_metrics_wait_for_a_slot(gallery: GalleryWriter) -> None:
    routes = {route.path: route for route in create_app(gallery.resources.settings).routes if isinstance(route, Route)}
    assert classify_work("GET", getattr(routes["/metrics"], "openapi_extra", {})) is Work.READ
