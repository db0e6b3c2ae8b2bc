"""A request that is sent again with its idempotency key is not carried out again."""

import asyncio
import base64
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update
from starlette.types import Message, Receive, Scope, Send

from app import deps
from app.db.session import reading, writing
from app.db.tables import ERASED_STATUS, Deployment, Job, Key, Label, StoredResponse, now
from app.deps.idempotency import middleware as idempotency
from app.errors import Busy
from tests.app.test_faces import BASE, enrol, picture
from tests.databases import remove_test_data
from tests.flows.test_upload import FILES, tar
from tests.killed_process import kill_process
from tests.service import Service


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def staff(service: Service) -> httpx.Client:
    """A client of a service that has the collection `staff`."""
    service.client.headers.pop("Idempotency-Key", None)  # of the test before
    service.client.put(BASE).raise_for_status()
    return service.client


def imported(client: httpx.Client, key: str, **changes: object) -> httpx.Response:
    request: dict[str, object] = {"content": tar(FILES), "params": {"aligned": True}} | changes
    return client.post(f"{BASE}:import", headers={"Idempotency-Key": key}, **request)  # type: ignore[arg-type]


def test_an_import_sent_again_returns_the_same_job(service: Service, staff: httpx.Client) -> None:
    first, second = imported(staff, "a"), imported(staff, "a")
    assert (first.status_code, second.status_code) == (202, 202)
    assert second.headers["Location"] == first.headers["Location"]
    assert (second.json(), second.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert imported(staff, "b").headers["Location"] != first.headers["Location"]
    with reading(service.resources.database) as session:
        assert len(session.scalars(select(Job).where(Job.kind == "import")).all()) == 2


def test_an_idempotency_key_belongs_to_one_request_and_one_caller(service: Service, staff: httpx.Client) -> None:
    imported(staff, "a").raise_for_status()
    other = imported(staff, "a", params={"aligned": False})
    assert (other.status_code, other.json()["code"]) == (422, "IdempotencyKeyReused")
    assert imported(staff, "x" * 256).status_code == 422
    with httpx.Client(base_url=service.url, headers=service.key("operator")) as colleague:
        assert "Idempotent-Replayed" not in imported(colleague, "a").headers


def test_a_body_of_another_type_is_another_request(staff: httpx.Client) -> None:
    def send(media_type: str) -> httpx.Response:
        headers = {"Idempotency-Key": "a", "Content-Type": media_type}
        return staff.post(f"{BASE}:import", content=tar(FILES), params={"aligned": True}, headers=headers)

    assert send("application/x-tar").status_code == 202
    assert send("application/x-tar; charset=binary").headers["Idempotent-Replayed"] == "true"
    assert send("application/zip").json()["code"] == "IdempotencyKeyReused"


def test_other_labels_of_the_same_length_are_another_request(service: Service, staff: httpx.Client) -> None:
    faces = [enrol(staff, picture(n)).raise_for_status().json()["face_records"][0]["face_id"] for n in (1, 2, 3)]

    def send(second: str) -> httpx.Response:
        headers = {"Idempotency-Key": "a", "Content-Type": "text/csv"}
        content = f"face_a,face_b,same\n{faces[0]},{second},1\n"
        return staff.post("/v1/labels:import", content=content, headers=headers)

    assert send(faces[1]).raise_for_status().json()["accepted"] == 1
    assert send(faces[1]).headers["Idempotent-Replayed"] == "true"
    other = send(faces[2])
    assert (other.status_code, other.json()["code"]) == (422, "IdempotencyKeyReused")


def test_a_request_that_was_cut_off_does_not_take_the_key_of_its_repeat(service: Service, staff: httpx.Client) -> None:
    async def receive() -> Message:
        return next(messages)

    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    state = {"resources": service.resources, "caller": SimpleNamespace(key_id="operator")}
    headers = [(b"idempotency-key", b"a")]
    scope = {"type": "http", "method": "POST", "path": "/v1/keys", "query_string": b"", "headers": headers}
    answer: list[Message] = []
    carried_out: list[Scope] = []

    async def carry_out(scope: Scope, receive: Receive, send: Send) -> None:
        carried_out.append(scope)

    async def send(message: Message) -> None:
        answer.append(message)

    asyncio.run(idempotency.IdempotencyMiddleware(carry_out)(scope | {"state": state}, receive, send))
    assert not carried_out
    assert answer[0]["status"] == 422
    with reading(service.resources.database) as session:
        assert session.scalars(select(StoredResponse)).all() == []


def test_what_a_key_says_is_not_stored(service: Service, staff: httpx.Client) -> None:
    imported(staff, "import-of-Ludovica-Erasmus").raise_for_status()
    assert imported(staff, "import-of-Ludovica-Erasmus").headers["Idempotent-Replayed"] == "true"
    with reading(service.resources.database) as session:
        stored = session.scalars(select(StoredResponse)).one()
    assert re.fullmatch(r"[0-9a-f]{32}", stored.idempotency_key)
    settings = service.resources.settings
    assert not any(b"Ludovica" in path.read_bytes() for path in settings.home.rglob("*") if path.is_file())


def test_a_corrected_request_can_be_sent_under_the_key_of_a_refused_one(staff: httpx.Client) -> None:
    headers = {"Idempotency-Key": "a"}
    staff.headers.update(headers)
    assert enrol(staff, b"no picture").status_code == 422
    assert enrol(staff, picture()).status_code == 201
    again = enrol(staff, picture())
    assert again.status_code == 422, "httpx makes a new boundary each time: another body"


def test_a_repeated_request_is_refused_while_the_first_one_runs(service: Service, staff: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: imported(staff, "a"), range(4)))
    assert {a.status_code for a in answers} <= {202, 409}
    assert len({a.headers["Location"] for a in answers if a.status_code == 202}) == 1
    with writing(service.resources.database) as session:
        session.execute(update(StoredResponse).values(status=None))
    refused = imported(staff, "a")
    assert (refused.status_code, refused.json()["code"]) == (409, "RequestInProgress")
    with writing(service.resources.database) as session:
        session.execute(update(StoredResponse).values(created_at=now() - 1_000))
    assert imported(staff, "a").status_code == 202


def test_a_key_that_a_killed_process_reserved_is_free(service: Service, staff: httpx.Client) -> None:
    first = imported(staff, "a")
    killed = kill_process(service.resources.audit)
    for process, status in ((None, 409), (killed, 202)):
        with writing(service.resources.database) as session:
            reservation = session.scalars(select(StoredResponse)).one()
            assert reservation.process not in (None, killed), "the service names its process"
            own, reservation.status = reservation.process, None
            reservation.process = process or own
        assert imported(staff, "a").status_code == status
    assert imported(staff, "a").headers["Location"] != first.headers["Location"]


def test_a_request_whose_reservation_another_one_took_is_not_carried_out(
    service: Service, staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Idempotency-Key": "a"}
    repeats, begin = list[httpx.Response](), deps.writing

    def begin_after_repeat(*arguments: Any) -> Any:
        """Have the reservation end, as when the clock goes forward, and the request repeated before it is committed."""
        if not repeats:
            let_reservations_end(service)
            monkeypatch.setattr(deps, "writing", begin)
            repeats.append(staff.post(f"{BASE}:examine", headers=headers))
        return begin(*arguments)

    monkeypatch.setattr(deps, "writing", begin_after_repeat)
    first = staff.post(f"{BASE}:examine", headers=headers)
    assert (first.status_code, first.json()["code"]) == (409, "RequestInProgress")
    assert repeats[0].status_code == 202
    again = staff.post(f"{BASE}:examine", headers=headers)
    assert again.headers["Location"] == repeats[0].headers["Location"]
    with reading(service.resources.database) as session:
        assert session.scalar(select(func.count()).where(Job.kind == "examine")) == 1


def kill_between_commit_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing happen after the commit of a request's changes, as if the process had been killed then."""

    def store_nothing(*_: object) -> None:
        raise Busy("killed")

    monkeypatch.setattr(idempotency, "_store_response", store_nothing)


def let_reservations_end(service: Service) -> None:
    with writing(service.resources.database) as session:
        ended = update(StoredResponse).where(StoredResponse.status.is_(None))
        session.execute(ended.values(created_at=now() - 1_000))


def test_a_failed_request_may_be_repeated_once_a_database_that_was_away_is_back(
    staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_between_commit_and_answer(patch)  # the database cannot be written when the request ends
        missing = staff.post(f"{BASE}/subjects/nobody:merge", json={"into": "ada"}, headers={"Idempotency-Key": "a"})
        assert missing.status_code == 404
    until = time.monotonic() + 20
    while (
        again := staff.post(f"{BASE}/subjects/nobody:merge", json={"into": "ada"}, headers={"Idempotency-Key": "a"})
    ).status_code == 409:
        assert time.monotonic() < until, again.text
        time.sleep(0.1)
    assert again.status_code == 404


def test_a_request_whose_key_cannot_be_reserved_may_be_repeated_and_says_when(
    staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve_nothing(*_: object) -> None:
        raise Busy("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "_reserve_key", reserve_nothing)
        refused = imported(staff, "a")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert imported(staff, "a").status_code == 202


def test_a_request_whose_process_died_after_the_commit_is_not_carried_out_again(
    service: Service, staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled = [enrol(staff, picture(n)).raise_for_status().json() for n in (1, 2)]
    faces = [answer["face_records"][0]["face_id"] for answer in enrolled]
    labels = {"json": {"labels": [{"face_a": faces[0], "face_b": faces[1], "same": False, "by": "ana"}]}}
    kill_between_commit_and_answer(monkeypatch)
    first = staff.post("/v1/labels", headers={"Idempotency-Key": "a"}, **labels)
    job = imported(staff, "b")
    assert (first.status_code, job.status_code) == (200, 202)
    let_reservations_end(service)
    again, same_job = staff.post("/v1/labels", headers={"Idempotency-Key": "a"}, **labels), imported(staff, "b")
    assert (again.status_code, again.content, again.headers["Idempotent-Replayed"]) == (200, first.content, "true")
    assert (same_job.status_code, same_job.headers["Location"]) == (202, job.headers["Location"])
    with reading(service.resources.database) as session:
        assert session.scalar(select(func.count()).select_from(Label)) == 1


def test_a_key_that_was_made_by_a_process_that_died_is_not_made_again(
    service: Service, staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_between_commit_and_answer(monkeypatch)
    body = {"role": "reader", "name": "once-and-killed"}
    made = staff.post("/v1/keys", json=body, headers={"Idempotency-Key": "k"}).raise_for_status().json()
    let_reservations_end(service)
    again = staff.post("/v1/keys", json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["code"]) == (409, "SecretNotStored")
    assert again.json()["key_id"] == made["id"]
    with reading(service.resources.database) as session:
        stored = session.scalars(select(StoredResponse)).one()
        assert session.scalar(select(func.count()).where(Key.name == "once-and-killed")) == 1
    assert made["key"].encode() not in stored.body


def test_a_roll_back_by_a_process_that_died_is_not_undone_by_its_repeat(
    service: Service, staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = f"{BASE}/deployments/identity"
    with writing(service.resources.database) as session:
        row = session.get_one(Deployment, ("staff", "identity"))
        row.previous = row.champion
    kill_between_commit_and_answer(monkeypatch)
    versions = []
    for _ in range(2):
        answer = staff.post(f"{deployment}:rollback", headers={"Idempotency-Key": "r"})
        assert answer.status_code == 200, answer.text
        versions.append(staff.get(deployment).json()["version"])
        let_reservations_end(service)
    assert versions[0] == versions[1]


def test_an_answer_that_was_erased_meanwhile_is_not_stored_again(
    service: Service, staff: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = idempotency._store_response

    def store_after_erasure(*arguments: Any) -> None:
        with writing(service.resources.database) as session:
            session.execute(update(StoredResponse).values(status=ERASED_STATUS, body=b""))
        store(*arguments)

    monkeypatch.setattr(idempotency, "_store_response", store_after_erasure)
    imported(staff, "a").raise_for_status()
    assert imported(staff, "a").json()["code"] == "AnswerErased"


def test_a_request_to_a_deleted_collection_is_not_repeated_for_the_next_one_of_its_name(staff: httpx.Client) -> None:
    headers = {"Idempotency-Key": "a"}
    photo = {"image": base64.b64encode(picture()).decode(), "aligned": True, "subject": "ada"}
    assert staff.post(f"{BASE}/faces", json=photo, headers=headers).status_code == 201
    assert staff.post(f"{BASE}/faces", json=photo, headers=headers).headers["Idempotent-Replayed"] == "true"
    staff.delete(BASE).raise_for_status()
    gone = staff.post(f"{BASE}/faces", json=photo, headers=headers)
    assert (gone.status_code, gone.json()["code"]) == (409, "AnswerErased")
    staff.put(BASE).raise_for_status()
    again = staff.post(f"{BASE}/faces", json=photo, headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "AnswerErased")
    new = {"Idempotency-Key": "b"}
    photo["subject"] = "grace"  # an answer that names ada may be erased with those of the deleted collection
    assert staff.post(f"{BASE}/faces", json=photo, headers=new).status_code == 201
    assert staff.post(f"{BASE}/faces", json=photo, headers=new).headers["Idempotent-Replayed"] == "true"
