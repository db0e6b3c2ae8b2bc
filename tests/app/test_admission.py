"""The admission gate: who runs, who waits, and who is refused."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.deps.admission.clients import MAX_OVERLOAD_SECONDS, Ticket
from app.deps.admission.gate import MAX_SLOT_SECONDS, AdmissionGate
from app.deps.admission.middleware import MAX_UNCHECKED_BYTES, AdmissionMiddleware
from app.deps.admission.work import SEARCHES, Work, classify_work
from app.errors import Busy
from benchmarks.load.connections import Address, ConnectionPool
from benchmarks.load.generator import Record, find_percentile_ms, send_all
from benchmarks.load.traffic import Gallery, MixedTraffic, draw_photo
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service, run_service

FLOOD = 120


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_gate(slots: int = 1, min_queue: int = 0, patience_seconds: float = 1000.0) -> tuple[AdmissionGate, Clock]:
    clock = Clock()
    return AdmissionGate(slots, min_queue, patience_seconds, clock), clock


async def start(gate: AdmissionGate, *works: Work) -> list[asyncio.Task[Ticket]]:
    """Have a request of each class come, one after the other."""
    tasks = []
    for work in works:
        tasks.append(asyncio.create_task(gate.enter(work)))
        await settle()
    return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_as_many_requests_run_as_there_are_slots() -> None:
    async def test() -> None:
        gate, _ = make_gate(slots=2, min_queue=9)
        first, second, third = await start(gate, Work.SEARCH, Work.SEARCH, Work.SEARCH)
        assert [first.done(), second.done(), third.done()] == [True, True, False]
        gate.leave(first.result())
        gate.leave(first.result())
        await settle()
        assert third.done()
        assert gate.waiting == 0

    run(test)


def test_a_request_that_would_miss_its_deadline_is_refused_at_once() -> None:
    async def test() -> None:
        gate, _ = make_gate()
        running, waiting, refused = await start(gate, Work.PHOTO, Work.PHOTO, Work.PHOTO)
        assert running.done()
        assert not waiting.done()
        assert isinstance(refused.exception(), Busy)
        gate.leave(running.result())
        assert (await waiting).work is Work.PHOTO

    run(test)


def test_a_request_whose_deadline_has_passed_is_refused() -> None:
    async def test() -> None:
        gate, clock = make_gate()
        running, waiting = await start(gate, Work.PHOTO, Work.PHOTO)
        clock.now += 10 * gate.estimates[Work.PHOTO]
        gate.leave(running.result())
        with pytest.raises(Busy):
            await waiting

    run(test)


def test_the_nearest_deadline_is_served_first() -> None:
    async def test() -> None:
        gate, _ = make_gate(min_queue=9)
        running, photo, search = await start(gate, Work.PHOTO, Work.PHOTO, Work.SEARCH)
        gate.leave(running.result())
        await settle()
        assert [photo.done(), search.done()] == [False, True]

    run(test)


def test_a_few_clients_that_wait_for_their_answers_are_never_refused() -> None:
    async def test() -> None:
        gate, clock = make_gate(slots=2, min_queue=14)

        async def send_requests() -> None:
            for _ in range(30):
                ticket = await gate.enter(Work.PHOTO)
                await settle()
                clock.now += 0.2
                gate.leave(ticket)

        await asyncio.gather(*(send_requests() for _ in range(14)))
        assert not gate.is_overloaded

    run(test)


def test_a_flood_is_an_overload_until_it_has_faded() -> None:
    async def test() -> None:
        gate, clock = make_gate(min_queue=4)
        tasks = await start(gate, *[Work.READ] * 12)
        refused = [task for task in tasks if task.done() and task.exception()]
        assert gate.is_overloaded
        assert len(refused) >= 6
        clock.now += 100.0
        assert not gate.is_overloaded
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(test)


def test_under_overload_one_slot_less_is_given() -> None:
    async def test() -> None:
        gate, clock = make_gate(slots=2, min_queue=4)
        first, second, *others = await start(gate, *[Work.READ] * 12)
        waiting = [task for task in others if not task.done()]
        assert gate.is_overloaded
        gate.leave(first.result())
        await settle()
        assert not any(task.done() for task in waiting)
        clock.now += 100.0
        gate.leave(second.result())
        await settle()
        assert not gate.is_overloaded
        assert sum(task.done() for task in waiting) == 2
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    run(test)


def test_clients_that_repeat_refused_requests_at_once_are_accepted_in_the_end() -> None:
    async def test() -> None:
        gate, clock = make_gate(min_queue=6)
        crowd = await start(gate, *[Work.READ] * 20)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        clients: list[asyncio.Task[Ticket]] = []
        refused_at = []
        while clock.now < 100.0 + MAX_OVERLOAD_SECONDS + 5:
            clock.now += 0.01
            for task in [task for task in clients if task.done()]:
                clients.remove(task)
                if task.exception():
                    refused_at.append(clock.now - 100.0)
                else:
                    gate.leave(task.result())
            clients += await start(gate, *[Work.READ] * (5 - len(clients)))
        assert len(refused_at) > 1000
        assert max(refused_at) == pytest.approx(MAX_OVERLOAD_SECONDS, abs=0.5)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    run(test)


def test_a_slot_that_is_held_too_long_is_passed_on() -> None:
    async def test() -> None:
        gate, clock = make_gate(min_queue=9)
        stuck, waiting = await start(gate, Work.WRITE, Work.SEARCH)
        clock.now += MAX_SLOT_SECONDS
        (later,) = await start(gate, Work.SEARCH)
        assert waiting.done()
        assert not later.done()
        gate.leave(stuck.result())
        await settle()
        assert not later.done(), "it had no slot any more to give back"
        gate.leave(waiting.result())
        assert (await later).work is Work.SEARCH

    run(test)


def test_patience_ends_by_itself() -> None:
    async def test() -> None:
        gate = AdmissionGate(1, 9, 0.01)
        await gate.enter(Work.PHOTO)
        with pytest.raises(Busy):
            await gate.enter(Work.PHOTO)

    run(test)


def test_a_request_that_is_cancelled_leaves_the_queue_or_its_slot() -> None:
    async def test() -> None:
        gate, _ = make_gate(min_queue=9)
        running, waiting, granted, last = await start(gate, Work.READ, Work.READ, Work.READ, Work.READ)
        waiting.cancel()
        await settle()
        assert gate.waiting == 2
        gate.leave(running.result())
        granted.cancel()  # at the moment when it gets the slot
        assert (await last).work is Work.READ

    run(test)


def test_estimates_follow_what_requests_take() -> None:
    async def test() -> None:
        gate, clock = make_gate()
        for _ in range(200):
            ticket = await gate.enter(Work.SEARCH)
            clock.now += 0.1
            gate.leave(ticket)
        assert gate.estimates[Work.SEARCH] == pytest.approx(0.1, rel=0.01)

    run(test)


@pytest.mark.parametrize(
    ("method", "requirements", "work"),
    [
        ("GET", {}, None),
        ("GET", {"x-role": "reader"}, Work.READ),
        ("PATCH", {"x-role": "operator"}, Work.WRITE),
        ("POST", {"x-role": "operator", "x-body": "photo"}, Work.PHOTO),
        ("POST", {"x-role": "reader"} | SEARCHES, Work.SEARCH),
    ],
)
def test_work_is_classified_by_what_the_route_declares(
    method: str, requirements: dict[str, str], work: Work | None
) -> None:
    assert classify_work(method, requirements) is work


class Exchange:
    """One request to the middleware alone. sent: the messages of its answer"""

    def __init__(self, gate: AdmissionGate, body: list[bytes], declared_bytes: int | None = None) -> None:
        self.gate, self.body, self.sent, self.read = gate, body, list[Any](), 0
        length = declared_bytes if declared_bytes is not None else sum(map(len, body))
        headers = [(b"content-length", str(length).encode())] if body else []
        self.scope = {
            "type": "http",
            "method": "POST",
            "headers": headers,
            "state": {"requirements": {"x-role": "reader", "x-body": "photo"}, "request_id": "r"},
        }

    async def run(self, route: Callable[..., Awaitable[None]]) -> None:
        await AdmissionMiddleware(route, self.gate)(self.scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        return {"type": "http.request", "body": self.body[self.read - 1], "more_body": self.read < len(self.body)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


async def read_and_answer(scope: Any, receive: Any, send: Any) -> None:
    """A route that reads its body, as FastAPI does: any error in that becomes a 400."""
    status = 200
    try:
        while (await receive())["more_body"]:
            pass
    except Exception:
        status = 400
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_refusal_replaces_what_the_route_makes_of_it() -> None:
    async def test() -> None:
        gate, _ = make_gate()
        tasks = await start(gate, Work.PHOTO, Work.PHOTO)
        exchange = Exchange(gate, [b"a", b"b"])
        await exchange.run(read_and_answer)
        assert [message.get("status") for message in exchange.sent] == [503, None]
        assert (b"retry-after", b"1") in exchange.sent[0]["headers"]
        assert json.loads(exchange.sent[1]["body"])["code"] == "Throttling"
        for task in tasks:
            task.cancel()

    run(test)


def test_a_long_body_is_not_read_before_its_request_is_refused() -> None:
    async def test() -> None:
        gate, _ = make_gate()
        tasks = await start(gate, Work.PHOTO, Work.PHOTO)
        exchange = Exchange(gate, [b"a", b"b"], declared_bytes=MAX_UNCHECKED_BYTES + 1)
        await exchange.run(read_and_answer)
        assert exchange.sent[0]["status"] == 503
        assert exchange.read == 0
        for task in tasks:
            task.cancel()

    run(test)


def test_a_body_that_is_on_its_way_holds_no_slot() -> None:
    async def test() -> None:
        gate, _ = make_gate()
        arrived = asyncio.Event()
        exchange = Exchange(gate, [b"a", b"b"])
        receive = exchange.receive

        async def receive_slowly() -> dict[str, Any]:
            if exchange.read:
                await arrived.wait()
            return await receive()

        exchange.receive = receive_slowly  # type: ignore[method-assign]
        slow = asyncio.create_task(exchange.run(read_and_answer))
        await settle()
        ticket = await gate.enter(Work.PHOTO)
        gate.leave(ticket)
        arrived.set()
        await slow
        assert exchange.sent[0]["status"] == 200
        assert gate.predict_wait(Work.PHOTO) == 0.0

    run(test)


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Gallery, list[Record], list[int]]]:
    """A service with one slot that gets FLOOD requests at once, while /livez is asked in turn."""
    home: Path = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, default_recogniser="lbp", request_slots=1, min_queued_requests=0, workers=1)
    with run_service(settings) as service:
        rows, subjects = people(40, 2, dim=16)
        model = make_model("m-1", dim=16)
        writer = GalleryWriter(service.resources).make(model)
        gallery = Gallery("staff", rows, subjects, writer.add({model.id: rows}, subjects))
        service.wait_for_indexes()
        until = time.monotonic() + 60
        while (answer := service.client.get("/readyz")).status_code != 200:
            assert time.monotonic() < until, answer.text
            time.sleep(0.05)
        secret = service.client.headers["Authorization"].removeprefix("Bearer ")
        url = httpx.URL(service.url)
        address = Address(url.host, url.port or 80, secret)
        traffic = MixedTraffic(address, gallery, photos=[draw_photo(1)])
        records, probes = asyncio.run(send_flood(address, traffic))
        yield service, gallery, records, probes


async def send_flood(address: Address, traffic: MixedTraffic) -> tuple[list[Record], list[int]]:
    pool, probe_pool = ConnectionPool(address), ConnectionPool(address)
    flood, probes = list[Record](), list[int]()

    async def probe() -> None:
        for _ in range(5):
            probes.append((await probe_pool.send(address.format_request("GET", "/livez"))).status)

    await asyncio.gather(send_all(pool, traffic, FLOOD, flood), probe())
    await asyncio.gather(pool.close(), probe_pool.close())
    return flood, probes


def test_a_flood_is_refused_with_retry_after_and_what_is_accepted_is_right(
    flooded: tuple[Service, Gallery, list[Record], list[int]],
) -> None:
    _, _, records, probes = flooded
    assert len(records) == FLOOD
    assert {record.status for record in records} <= {200, 201, 503}
    assert all(record.is_right for record in records), "an answer is wrong, or a refusal has no Retry-After"
    assert any(record.is_accepted for record in records)
    assert sum(record.is_refused for record in records) > FLOOD / 4
    assert probes == [200] * 5
    assert find_percentile_ms(records, 0.5) > 0


def test_nothing_that_was_accepted_is_lost(flooded: tuple[Service, Gallery, list[Record], list[int]]) -> None:
    service, gallery, records, _ = flooded
    accepted = [record.kind for record in records if record.is_accepted]
    faces = service.client.get("/v1/collections/staff").json()["face_count"]
    labels = service.client.get("/v1/labels", params={"limit": 1000}).json()["labels"]
    assert faces == len(gallery.face_ids) + accepted.count("enrol")
    assert len(labels) == accepted.count("label")


def test_the_service_answers_again_after_a_flood(flooded: tuple[Service, Gallery, list[Record], list[int]]) -> None:
    service, gallery, _, _ = flooded
    answer = service.client.post("/v1/collections/staff/search:by-embedding", json={"vector": gallery.rows[0].tolist()})
    assert answer.status_code == 200
    metrics = service.client.get("/metrics").text
    assert 'likeness_admission_total{outcome="refused",work="search"}' in metrics
    assert 'likeness_admission_wait_seconds_count{work="search"}' in metrics
