"""A host that alone is cut off from PostgreSQL, while another goes on to write there."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.access import keys, request_checks
from app.config import Settings
from app.db import session as database_session
from app.db.migrate import upgrade_database
from app.db.servers import reach
from app.db.session import reading, writing
from app.db.tables import Collection
from app.errors import Busy
from app.resources import Resources, open_resources
from app.serving import follower
from app.serving.deployment_rows import DeploymentRow
from app.serving.follower import IndexFollower
from app.subjects.schemas import SubjectIn
from app.subjects.service import change_subject
from ml.types import Rows
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service, run_service

MAX_SECONDS = 30.0
MODEL = make_model("m-one")


class Cable:
    """A TCP address of a PostgreSQL server that listens on a socket of Unix; it can be cut and mended.

    passes: cleared while nothing is passed on, as by a proxy that hangs: it closes no connection
    """

    def __init__(self, path: str) -> None:
        self.path, self.is_cut = path, False
        self.passes = threading.Event()
        self.passes.set()
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.path)
            self.ends += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                self.passes.wait()
                target.sendall(part)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def cable(database_server: Any) -> Iterator[Cable]:
    folder = database_server.get_uri().partition("?host=")[2]
    cable = Cable(f"{folder}/.s.PGSQL.5432")
    yield cable
    cable.cut()
    cable.listener.close()


@pytest.fixture
def service(tmp_path: Path, database_server: Any, cable: Cable) -> Iterator[Service]:
    """The service of the host that will be cut off."""
    upgrade_database(Settings(database_url=database_server.get_uri()).database, None)
    url = f"postgresql://postgres:@127.0.0.1:{cable.port}/postgres"
    settings = Settings(
        home=tmp_path / "home", database_url=url, poll_seconds=0.05, workers=1, default_recogniser="lbp"
    )
    with run_service(settings) as started:
        yield started
        cable.mend()
        cable.passes.set()


@pytest.fixture
def other_host(service: Service, database_server: Any) -> Iterator[Resources]:
    """What a process of another host opens, on the same home and the same database."""
    settings = service.resources.settings.model_copy(update={"database_url": database_server.get_uri()})
    with open_resources(settings) as resources:
        yield resources


def wait_until(is_reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def enrol_people(service: Service) -> tuple[Rows, list[str]]:
    """Enrol twenty people of three faces each, and return the faces' embeddings and names once they are found."""
    rows, names = people(20, 3)
    GalleryWriter(service.resources).make(MODEL).add({MODEL.id: rows}, names)
    wait_until(lambda: names[0] in search_by_row(service, rows, 0).text, "the gallery is not served")
    service.wait_for_indexes()
    return rows, names


def search_by_row(service: Service, rows: Rows, row: int, **headers: str) -> httpx.Response:
    path = "/v1/collections/staff/search:by-embedding"
    return service.client.post(path, json={"vector": rows[row].tolist()}, headers=headers, timeout=MAX_SECONDS)


@contextmanager
def keep_reading(resources: Resources) -> Iterator[None]:
    """Ask the database for something every tenth of a second, as any process that runs does."""
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(0.1):
            with reading(resources.database) as session:
                session.get(Collection, "staff")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(MAX_SECONDS)


def test_a_host_that_is_cut_off_alone_neither_names_who_refused_since_nor_lets_revoked_keys_in(
    service: Service, other_host: Resources, cable: Cable
) -> None:
    rows, names = enrol_people(service)
    with writing(other_host.database) as session:
        revoked, secret = keys.create_key(session, "reader", "revoked")
        revoked_id = revoked.id

    search = partial(search_by_row, service, rows)

    def search_by_key(row: int) -> httpx.Response:
        return search(row, Authorization=f"Bearer {secret}")

    wait_until(lambda: search_by_key(0).is_success, "the gallery is not served")
    service.wait_for_indexes()
    assert names[0] in search(0).text
    with keep_reading(other_host):
        cable.cut()
        with writing(other_host.database) as session:
            change_subject(session, "staff", names[0], SubjectIn(consent=False))
            keys.revoke_key(session, revoked_id)
        wait_until(lambda: search(0).status_code == 503, "the host that is cut off goes on to answer")
        answers = [search(0) for _ in range(20)] + [search_by_key(0) for _ in range(20)]
        assert {(a.status_code, "retry-after" in a.headers) for a in answers} == {(503, True)}
        assert "from others" in answers[0].text
        cable.mend()
        wait_until(lambda: search(3).is_success, "the host does not recover")
    assert names[0] not in search(0).text
    assert search_by_key(3).status_code == 401


@pytest.fixture(params=["sqlite", "postgresql"])
def two_processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Service, Resources]]:
    """A service, and what another process opens on the same home."""
    if request.param == "postgresql":
        yield request.getfixturevalue("service"), request.getfixturevalue("other_host")
        return
    settings = Settings(home=tmp_path / "home", poll_seconds=0.05, workers=1, default_recogniser="lbp")
    with run_service(settings) as started, open_resources(settings) as other:
        yield started, other


@pytest.mark.parametrize("has_read", [False, True], ids=["before it reads", "after it has read"])
def test_a_process_whose_follower_is_held_up_names_nobody(
    two_processes: tuple[Service, Resources], monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    service, other_host = two_processes
    rows, names = enrol_people(service)
    search = partial(search_by_row, service, rows)
    monkeypatch.setattr(reach, "MAX_SILENCE_SECONDS", 2.0)
    is_held, may_go_on, step, read = threading.Event(), threading.Event(), IndexFollower.step, follower.read_deployments

    def hold_up() -> None:
        if may_go_on.is_set():
            time.sleep(0.5)  # so long, what was read before is all that is known
        is_held.set()
        may_go_on.wait(MAX_SECONDS)

    def wait_and_step(follower: IndexFollower) -> None:
        hold_up()
        step(follower)

    def read_and_wait(session: Session) -> list[DeploymentRow]:
        deployments = read(session)
        hold_up()
        return deployments

    if has_read:
        monkeypatch.setattr(follower, "read_deployments", read_and_wait)
    else:
        monkeypatch.setattr(IndexFollower, "step", wait_and_step)
    assert is_held.wait(MAX_SECONDS)
    with writing(other_host.database) as session:
        change_subject(session, "staff", names[0], SubjectIn(consent=False))
    assert names[0] in search(0).text, "the follower has read it already"
    wait_until(lambda: search(0).status_code == 503, "who has refused is named without end")
    answers = [search(0) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {503}
    assert "has not read the last changes" in answers[0].text
    time.sleep(0.5)  # the step began a little later than the one before
    may_go_on.set()
    wait_until(lambda: search(3).is_success, "the process does not recover")
    assert names[0] not in search(0).text


def test_a_host_goes_on_to_answer_while_nobody_reaches_the_database(
    service: Service, database_server: Any, other_host: Resources, cable: Cable
) -> None:
    rows, _ = enrol_people(service)
    search = partial(search_by_row, service, rows)
    cable.cut()
    deadline = time.monotonic() + 6.0  # longer than it takes to notice that others reach it
    failures = set[str]()
    while time.monotonic() < deadline:
        answer = search(3)
        failures |= set() if answer.is_success else {answer.text}
        time.sleep(0.1)
    assert failures == set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the service wait less long for an answer of the database."""
    monkeypatch.setattr(reach, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(request_checks, "MAX_LOOKUP_SECONDS", 1.0)


@pytest.mark.usefixtures("impatient")
def test_a_host_whose_proxy_hangs_names_nobody_while_others_reach_the_database(
    service: Service, other_host: Resources, cable: Cable
) -> None:
    rows, names = enrol_people(service)
    search = partial(search_by_row, service, rows)
    with keep_reading(other_host):
        cable.passes.clear()
        with writing(other_host.database) as session:
            change_subject(session, "staff", names[0], SubjectIn(consent=False))
        wait_until(lambda: search(0).status_code == 503, "the host whose proxy hangs goes on to answer")
        answers = [search(0) for _ in range(20)]
        assert {(answer.status_code, "retry-after" in answer.headers) for answer in answers} == {(503, True)}
        assert "from others" in answers[0].text
        cable.passes.set()
        wait_until(lambda: search(3).is_success, "the host does not recover")
    assert names[0] not in search(0).text


@pytest.mark.usefixtures("impatient")
def test_a_host_goes_on_to_answer_while_the_database_hangs_for_everybody(
    service: Service, other_host: Resources, cable: Cable
) -> None:
    rows, _ = enrol_people(service)
    search = partial(search_by_row, service, rows)
    cable.passes.clear()
    answers, deadline = list[httpx.Response](), time.monotonic() + 6.0
    while time.monotonic() < deadline:
        answers.append(search(3))
        time.sleep(0.1)
    assert {answer.text for answer in answers if not answer.is_success} == set()
    assert len(answers) > 10, "each answer is waited for"


def test_a_process_that_hangs_in_the_middle_of_a_change_keeps_nobody_from_writing(
    service: Service, other_host: Resources, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, names = enrol_people(service)
    monkeypatch.setattr(database_session, "MAX_IDLE_WRITE_SECONDS", 1)
    is_written = threading.Event()

    def write() -> None:
        with writing(other_host.database) as session:
            session.execute(text("SET LOCAL lock_timeout = '20s'"))
            change_subject(session, "staff", names[0], SubjectIn(consent=False))
        is_written.set()

    def hang_while_another_writes() -> None:
        with writing(service.resources.database) as session:
            session.get_one(Collection, "staff", with_for_update=True)
            cable.passes.clear()
            try:
                write()
            finally:
                cable.passes.set()
            session.get_one(Collection, "staff", populate_existing=True)

    with pytest.raises(Busy):
        hang_while_another_writes()
    assert is_written.is_set()
