"""PostgreSQL that answers and refuses: a server that became read-only, and one that ends what waits too long."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DataError, InternalError, OperationalError
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Task
from app.errors import Busy
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive
from app.resources import Resources
from tests.databases import execute
from tests.service import Service

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
MAX_SECONDS = 30.0
WRITES = [
    ("PUT", "/v1/collections/other", None),
    ("DELETE", "/v1/collections/staff", None),
    ("POST", "/v1/keys", {"role": "reader"}),
    ("POST", "/v1/trainings", {"collection": "staff"}),
]


def wait_until(is_reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + MAX_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def close_connections(administration: Engine, name: str) -> None:
    execute(administration, f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")


def test_a_service_whose_database_became_read_only_waits_for_it(service: Service, administration: Engine) -> None:
    name = str(service.resources.database.url.database)
    assert service.client.put("/v1/collections/staff").status_code == 201
    wait_until(lambda: service.client.get("/readyz").status_code == 200, "the service does not become ready")
    with writing(service.resources.database) as session:
        job = enqueue(session, ImportArchive(collection="staff", path="/none"), delay=1.0).id
    execute(administration, f"alter database {name} set default_transaction_read_only = on")
    close_connections(administration, name)
    wait_until(lambda: "read-only" in service.client.get("/readyz").text, "the service does not say what is wrong")
    assert service.client.get("/readyz").status_code == 503
    for method, path, body in WRITES:
        answer = service.client.request(method, path, json=body)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1"), answer.text
        assert "its server is read-only" in answer.text
    assert service.client.get("/v1/collections").status_code == 200
    time.sleep(1.5)  # a worker would have taken the job
    assert service.client.get(f"/v1/jobs/{job}").json()["state"] == "queued"
    execute(administration, f"alter database {name} reset default_transaction_read_only")
    created = 201  # without another failover: connections to a server that does not write are not kept
    wait_until(lambda: service.client.put("/v1/collections/other").status_code == created, "nothing can be written")
    wait_until(lambda: service.client.get("/readyz").status_code == 200, "the service does not become ready again")
    wait_until(lambda: service.client.get(f"/v1/jobs/{job}").json()["state"] == "failed", "the job is not taken")


def wait_too_long(session: Session) -> None:
    session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '20ms'"))
    time.sleep(0.2)
    session.scalars(select(Task)).all()


def go_on_after_an_error(session: Session) -> None:
    with suppress(DataError):
        session.connection().exec_driver_sql("select 1/0")
    session.connection().exec_driver_sql("select 1")


@pytest.mark.parametrize(("open_session", "error"), [(writing, Busy), (reading, OperationalError)])
def test_a_transaction_that_the_server_ends_since_it_waits_can_be_repeated(
    resources: Resources, open_session: Callable[..., Any], error: type[Exception]
) -> None:
    with pytest.raises(error), open_session(resources.database) as session:
        wait_too_long(session)
    with open_session(resources.database) as session:
        assert session.scalar(select(1)) == 1


@pytest.mark.parametrize(
    ("state", "words"),
    [("XX001", "is damaged"), ("XX002", "is damaged"), ("53100", "its disk is full"), ("58030", "reports errors")],
)
def test_a_server_with_a_bad_disk_is_not_available(resources: Resources, state: str, words: str) -> None:
    with pytest.raises(Busy, match=words), writing(resources.database) as session:
        session.connection().exec_driver_sql(f"do $$ begin raise exception 'drawn' using errcode = '{state}'; end $$")
    with writing(resources.database) as session:
        assert session.scalar(select(1)) == 1


def test_an_internal_error_that_a_repetition_does_not_help_stays_one(resources: Resources) -> None:
    with pytest.raises(InternalError), writing(resources.database) as session:
        go_on_after_an_error(session)
