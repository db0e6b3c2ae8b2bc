"""Jobs over HTTP: the list with its order, filters and left-out fields, and the stream of events."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import text
from sse_starlette import EventSourceResponse

from app.db.session import writing
from app.db.tables import Collection, Job, now
from app.jobs import events
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate, ImportArchive, Publish
from tests.databases import remove_test_data
from tests.service import Service

LARGE = {"report": {"curve": [0.25] * 50_000}}


@pytest.fixture(scope="module", autouse=True)
def no_sweep() -> Iterator[None]:
    """Keep workers from writing sweep jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.schedule._is_sweep_due", lambda session: False)
        yield


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def jobs(service: Service) -> list[str]:
    """Ids of five jobs, oldest first, the last three live; and a part of an import, which is not listed."""
    with writing(service.resources.database) as session:
        session.add_all([Collection(id=name, change=0) for name in ("staff", "guests")])
        later = {"delay": 3600.0}
        publish = Publish(collection="staff", tasks=("identity",), model="m")
        made = [
            enqueue(session, ImportArchive(collection="staff", path="/none"), **later),
            enqueue(session, publish, **later),
            enqueue(session, ImportArchive(collection="guests", path="/none"), **later),
            enqueue(session, Evaluate(evaluation="e"), **later),
            enqueue(session, publish, **later),
        ]
        enqueue(session, ImportArchive(collection="staff", path="/part"), parent=made[0].id, **later)
        _end(made[0], "succeeded", result=LARGE)
        _end(made[1], "failed", problem={"code": "GateRefused", "detail": "worse", "status": 409, "reasons": ["x" * 9]})
        made[2].started_at = now()
        return [job.id for job in made]


def _end(job: Job, state: str, **values: object) -> None:
    job.state, job.finished_at = state, now()
    for name, value in values.items():
        setattr(job, name, value)


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def test_jobs_are_listed_newest_first_in_pages(service: Service, jobs: list[str]) -> None:
    client = service.client
    assert ids(client.get("/v1/jobs")) == jobs[::-1]
    assert ids(client.get("/v1/jobs", params={"order": "oldest"})) == jobs
    first = client.get("/v1/jobs", params={"limit": 3})
    rest = client.get("/v1/jobs", params={"limit": 3, "next_token": first.json()["next_token"]})
    assert ids(first) + ids(rest) == jobs[::-1]
    assert rest.json()["next_token"] is None
    wrong = client.get("/v1/jobs", params={"order": "oldest", "next_token": first.json()["next_token"]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "InvalidPaginationToken")


def test_the_list_of_jobs_leaves_results_out(service: Service, jobs: list[str]) -> None:
    answer = service.client.get("/v1/jobs")
    assert len(answer.content) < 5_000
    assert all("result" not in job for job in answer.json()["jobs"])
    whole = service.client.get(f"/v1/jobs/{jobs[0]}").json()
    assert whole["result"] == LARGE
    refused = answer.json()["jobs"][3]
    assert refused["problem"] == {"code": "GateRefused", "detail": "worse", "status": 409}
    assert service.client.get(f"/v1/jobs/{jobs[1]}").json()["problem"]["reasons"] == ["x" * 9]


def test_a_job_that_has_ended_tells_the_last_change_of_its_collection(service: Service, jobs: list[str]) -> None:
    with writing(service.resources.database) as session:
        session.get_one(Collection, "staff").change = 7
    answers = [service.client.get(f"/v1/jobs/{job_id}") for job_id in jobs]
    assert [answer.headers.get("X-Change-Number") for answer in answers] == ["7", "7", None, None, None]
    service.client.delete("/v1/collections/staff").raise_for_status()
    assert "X-Change-Number" not in service.client.get(f"/v1/jobs/{jobs[0]}").headers


def test_jobs_are_filtered_by_collection_kind_and_state(service: Service, jobs: list[str]) -> None:
    def chosen(**params: object) -> list[str]:
        return ids(service.client.get("/v1/jobs", params=params))  # type: ignore[arg-type]

    assert chosen(collection="staff") == [jobs[4], jobs[1], jobs[0]]
    assert chosen(collection="staff", kind="import") == [jobs[0]]
    assert chosen(state=["queued", "running"]) == [jobs[4], jobs[3], jobs[2]]
    assert chosen(state="running") == [jobs[2]], "a job that was put back after its start counts as running"
    assert chosen(state="queued") == [jobs[4], jobs[3]]
    assert chosen(state="failed") == [jobs[1]]
    assert chosen(collection="none") == []
    assert service.client.get("/v1/jobs?state=asleep").status_code == 422
    assert [j["collection"] for j in service.client.get("/v1/jobs").json()["jobs"]] == [
        "staff", None, "guests", "staff", "staff",
    ]  # fmt: skip


def test_a_bound_key_sees_only_the_jobs_of_its_collections(service: Service, jobs: list[str]) -> None:
    with httpx.Client(base_url=service.url, headers=service.key("reader", "guests")) as guest:
        assert ids(guest.get("/v1/jobs")) == [jobs[2]]
        assert ids(guest.get("/v1/jobs", params={"collection": "staff"})) == []


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_event_stream_survives_a_database_outage(
    service: Service, jobs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with service.client.stream("GET", f"/v1/jobs/{jobs[2]}/events") as answer:
        states = _states(answer.iter_lines())
        assert next(states) == "running"
        _rename_jobs(service, "jobs", "jobs_away")
        until = time.monotonic() + 10
        while "jobs.poll_failed" not in caplog.text and time.monotonic() < until:
            time.sleep(events.POLL_SECONDS)
        assert "jobs.poll_failed" in caplog.text
        _rename_jobs(service, "jobs_away", "jobs")
        with writing(service.resources.database) as session:
            _end(session.get_one(Job, jobs[2]), "succeeded")
        assert list(states) == ["succeeded"]


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_event_stream_ends_when_its_job_is_removed(service: Service, jobs: list[str]) -> None:
    with service.client.stream("GET", f"/v1/jobs/{jobs[3]}/events") as answer:
        states = _states(answer.iter_lines())
        assert next(states) == "queued"
        with writing(service.resources.database) as session:
            session.delete(session.get_one(Job, jobs[3]))
        assert list(states) == []


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_event_stream_ends_when_its_key_is_revoked(service: Service, jobs: list[str]) -> None:
    made = service.client.post("/v1/keys", json={"role": "reader"}).json()
    path = f"/v1/jobs/{jobs[3]}/events"
    with (
        httpx.Client(base_url=service.url, headers={"x-api-key": made["key"]}, timeout=10) as guest,
        guest.stream("GET", path) as answer,
        service.client.stream("GET", path) as other,
    ):
        states, states_of_other = _states(answer.iter_lines()), _states(other.iter_lines())
        assert (next(states), next(states_of_other)) == ("queued", "queued")
        assert service.client.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert list(states) == []
        with writing(service.resources.database) as session:
            _end(session.get_one(Job, jobs[3]), "succeeded")
        assert list(states_of_other) == ["succeeded"]


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_event_stream_ends_when_its_key_expires(service: Service, jobs: list[str]) -> None:
    made = service.client.post("/v1/keys", json={"role": "reader", "expires_at": time.time() + 3}).json()
    with (
        httpx.Client(base_url=service.url, headers={"x-api-key": made["key"]}, timeout=20) as guest,
        guest.stream("GET", f"/v1/jobs/{jobs[3]}/events") as answer,
    ):
        assert list(_states(answer.iter_lines())) == ["queued"]
        assert time.time() > made["expires_at"]


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize("overlap_seconds", [0, 1])
def test_an_event_stream_ends_when_its_secret_is_replaced(
    service: Service, jobs: list[str], overlap_seconds: int
) -> None:
    made = service.client.post("/v1/keys", json={"role": "reader"}).json()
    with (
        httpx.Client(base_url=service.url, headers={"x-api-key": made["key"]}, timeout=20) as guest,
        guest.stream("GET", f"/v1/jobs/{jobs[3]}/events") as answer,
    ):
        states = _states(answer.iter_lines())
        assert next(states) == "queued"
        rotate = f"/v1/keys/{made['id']}:rotate"
        service.client.post(rotate, json={"overlap_seconds": overlap_seconds}).raise_for_status()
        assert list(states) == []


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_an_event_stream_is_kept_alive_while_nothing_changes(
    service: Service, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventSourceResponse, "DEFAULT_PING_INTERVAL", 0.1)
    with service.client.stream("GET", f"/v1/jobs/{jobs[3]}/events") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-store"
        lines = [line for line, _ in zip((line for line in answer.iter_lines() if line), range(8), strict=False)]
    [event] = [line for line in lines if line.startswith("data: ")]
    assert json.loads(event.removeprefix("data: ")) == service.client.get(f"/v1/jobs/{jobs[3]}").json()
    assert all(line.startswith(": ping") for line in lines if line != event)


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_a_job_is_polled_no_longer_than_somebody_watches_it(service: Service, jobs: list[str]) -> None:
    with service.client.stream("GET", f"/v1/jobs/{jobs[3]}/events") as answer:
        states = _states(answer.iter_lines())  # the stream closes with its iterator
        assert next(states) == "queued"
        [poller] = [poller for poller in events.POLLERS.values() if poller.watchers]
        assert [(watch.job_id, count) for watch, count in poller.watchers.items()] == [(jobs[3], 1)]
    assert poller.task is not None
    until = time.monotonic() + 10
    while not poller.task.done() and time.monotonic() < until:
        time.sleep(0.05)
    assert poller.task.done()
    assert (poller.watchers, poller.latest) == ({}, {})


def test_a_job_that_is_unknown_has_no_event_stream(service: Service) -> None:
    answer = service.client.get("/v1/jobs/none/events")
    assert (answer.status_code, answer.json()["code"]) == (404, "ResourceNotFound")


def _states(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))["state"]


def _rename_jobs(service: Service, old: str, new: str) -> None:
    with service.resources.database.begin() as connection:
        connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))
