"""A PostgreSQL server that is stopped and started again while clients watch a job."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import reading, writing
from app.db.tables import Collection, Face, Job, now
from app.errors import Busy
from app.galleries.subjects import erase_faces
from app.jobs import events
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive
from tests.databases import administer, execute
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service, run_service

MAX_SECONDS = 30.0
MODEL = make_model("m-one")


@pytest.fixture
def service(tmp_path: Path, database_server: Any) -> Iterator[Service]:
    url = database_server.get_uri()
    settings = Settings(
        home=tmp_path / "home", database_url=url, poll_seconds=0.05, workers=1, default_recogniser="lbp"
    )
    upgrade_database(settings.database, settings.home)
    with run_service(settings) as started:
        yield started


def wait_until(is_reached: Any, what: str) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def read_states(lines: Iterator[str]) -> Iterator[str]:
    return (json.loads(line.removeprefix("data: "))["state"] for line in lines if line.startswith("data: "))


def test_event_streams_go_on_after_an_outage_of_the_database(
    service: Service, database_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(service.resources.database) as session:
        session.add(Collection(id="staff", change=0))
        job = enqueue(session, ImportArchive(collection="staff", path="/none"), delay=3600.0).id
    path = f"/v1/jobs/{job}/events"
    with service.client.stream("GET", path) as first, service.client.stream("GET", path) as second:
        streams = [read_states(answer.iter_lines()) for answer in (first, second)]
        assert [next(states) for states in streams] == ["queued", "queued"]
        for _ in range(2):
            caplog.clear()
            database_server.stop()
            assert service.client.get(f"/v1/jobs/{job}").status_code == 503
            wait_until(lambda: "jobs.poll_failed" in caplog.text, "the poller noticed nothing")
            database_server.start()
            wait_until(lambda: service.client.get(f"/v1/jobs/{job}").status_code == 200, "the service did not recover")
        with writing(service.resources.database) as session:
            ended = session.get_one(Job, job)
            ended.state, ended.finished_at = "succeeded", now()
        assert [list(states) for states in streams] == [["succeeded"], ["succeeded"]]


def test_the_stream_of_a_key_ends_with_the_key_while_the_database_is_away(
    service: Service, database_server: Any
) -> None:
    with writing(service.resources.database) as session:
        session.add(Collection(id="staff", change=0))
        job = enqueue(session, ImportArchive(collection="staff", path="/none"), delay=3600.0).id
        secret = keys.create_key(session, "reader", "short", expires_at=now() + 3.0)[1]
    bearer = {"Authorization": f"Bearer {secret}"}
    try:
        with service.client.stream("GET", f"/v1/jobs/{job}/events", headers=bearer, timeout=MAX_SECONDS) as answer:
            states = read_states(answer.iter_lines())
            assert next(states) == "queued"
            database_server.stop()
            assert list(states) == []
    finally:
        database_server.start()


def test_searches_by_vector_go_on_during_an_outage_of_the_database(service: Service, database_server: Any) -> None:
    rows, names = people(20, 3)
    gallery = GalleryWriter(service.resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    path = "/v1/collections/staff/search:by-embedding"

    def search(row: int) -> httpx.Response:
        return service.client.post(path, json={"vector": rows[row].tolist()})

    wait_until(lambda: search(0).is_success, "the gallery is not served")
    for _ in range(2):
        service.wait_for_indexes()  # after a write of its own, a process needs the database until it has followed
        database_server.stop()
        try:
            try:
                wait_until(lambda: search(0).is_success, "no search is answered")  # an index may just have been saved
            except AssertionError as error:
                raise AssertionError(search(0).text) from error
            answers = [search(row) for row in range(0, 60, 3)]
            assert {answer.status_code for answer in answers} == {200}
            nearest = [answer.json()["faces"][0]["matches"][0]["subject"]["id"] for answer in answers]
            assert nearest == names[::3]
            listed = service.client.get("/v1/collections/staff/faces")
            assert (listed.status_code, "retry-after" in listed.headers) == (503, True)
        finally:
            database_server.start()
        check_following(gallery, lambda: search(0).text)


def lose_last_commit(service: Service, server: Any, gallery: GalleryWriter) -> str:
    """Add a face, and kill the server's processes before it has written that to its disk. Returns the face's id."""
    database = gallery.resources.database
    for statement in ("synchronous_commit = off", "wal_writer_delay = '10s'"):
        with administer(server.get_uri()) as administration:
            execute(administration, f"alter system set {statement}")
            execute(administration, "select pg_reload_conf()")
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        with administer(server.get_uri()) as administration:
            execute(administration, "checkpoint")
        face_id = add_one_face(gallery)
        service.wait_for_indexes()
        with database.connect() as connection, database.connect() as other:
            os.kill(connection.scalar(text("select pg_backend_pid()")) or 0, signal.SIGKILL)
            connection.invalidate()
            with suppress(OperationalError):  # the server ends it once it has noticed
                other.execute(text(f"select pg_sleep({MAX_SECONDS})"))
        if face_id not in list_faces(gallery):
            return face_id
        assert time.monotonic() < deadline, "no commit was lost"


def list_faces(gallery: GalleryWriter) -> list[str]:
    """Return the ids of all faces once the database is back."""
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        try:
            with reading(gallery.resources.database) as session:
                return list(session.scalars(select(Face.face_id)))
        except (Busy, OperationalError):
            assert time.monotonic() < deadline


def test_who_refuses_consent_after_a_crash_that_lost_a_commit_is_not_found(
    service: Service, database_server: Any
) -> None:
    rows, names = people(20, 3)
    gallery = GalleryWriter(service.resources).make(MODEL)
    gallery.add({MODEL.id: rows}, names)
    service.wait_for_indexes()
    lost = lose_last_commit(service, database_server, gallery)
    refused = {"consent": False}

    def refuse() -> bool:
        return service.client.patch(f"/v1/collections/staff/subjects/{names[0]}", json=refused).is_success

    wait_until(refuse, "the service did not recover")
    path = "/v1/collections/staff/search:by-embedding"

    def is_found() -> bool:
        answer = service.client.post(path, json={"vector": rows[0].tolist()})
        return not answer.is_success or names[0] in answer.text or lost in answer.text

    wait_until(lambda: not is_found(), "who has refused is found, or a face that was lost")


def check_following(gallery: GalleryWriter, search: Callable[[], str]) -> None:
    """Check that a search finds a face that is added, and finds it no more once it is erased."""
    added = add_one_face(gallery)
    wait_until(lambda: added in search(), "a face that was added after the outage is not found")
    with writing(gallery.resources.database) as session:
        erase_faces(session, session.get_one(Collection, "staff"), Face.face_id == added)
    wait_until(lambda: added not in search(), "an erased face is found")


def add_one_face(gallery: GalleryWriter) -> str:
    """Add one face once the database is back, and return its id."""
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        try:
            [face_id] = gallery.add({MODEL.id: people(20, 3)[0][:1]}, [None])
            return face_id
        except (Busy, OperationalError):
            assert time.monotonic() < deadline


@pytest.mark.parametrize("failure", [RuntimeError("no more threads"), TimeoutError("no connection is free")])
def test_event_streams_go_on_after_any_failure_of_the_poller(
    service: Service, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(service.resources.database) as session:
        session.add(Collection(id="staff", change=0))
        job = enqueue(session, ImportArchive(collection="staff", path="/none"), delay=3600.0).id
    read_jobs, failures = events.Poller._read_jobs, [failure]

    def fail_once(poller: events.Poller, watches: list[events.Watch]) -> Any:
        if poller.latest and failures:
            raise failures.pop()
        return read_jobs(poller, watches)

    monkeypatch.setattr(events.Poller, "_read_jobs", fail_once)
    with service.client.stream("GET", f"/v1/jobs/{job}/events", timeout=httpx.Timeout(MAX_SECONDS)) as answer:
        states = read_states(answer.iter_lines())
        assert next(states) == "queued"
        wait_until(lambda: not failures, "the poller did not fail")
        with writing(service.resources.database) as session:
            ended = session.get_one(Job, job)
            ended.state, ended.finished_at = "succeeded", now()
        assert list(states) == ["succeeded"]
