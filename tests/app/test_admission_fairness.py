"""The slots are shared out between clients: who floods the service is refused, and others are not."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.deps.admission.clients import MAX_CLIENTS, RECENT_SECONDS, Ticket
from app.deps.admission.gate import MAX_REFUSAL_SECONDS, MAX_RUNNING_OF_CLIENT, MAX_SLOT_SECONDS, AdmissionGate
from app.deps.admission.middleware import AdmissionMiddleware
from app.deps.admission.work import Work
from app.deps.caller import Caller
from app.errors import Busy
from benchmarks.load.connections import Address, Answer, ConnectionPool
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service, run_service

FLOOD_CONNECTIONS = 32
FLOOD_SECONDS = 4.0
MIN_ROUNDS = 2
"""Of the requests beside the flood, which goes on for them: on a slow machine one takes a second."""
MIN_ANSWERED_SHARE = 0.95
MAX_MEDIAN_SECONDS = 4.0


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Crowd:
    """Requests to a gate, each in a task, by the names of their clients."""

    def __init__(self, slots: int = 1, min_queue: int = 4) -> None:
        self.clock = Clock()
        self.gate = AdmissionGate(slots, min_queue, 1000.0, self.clock)
        self._tasks: list[asyncio.Task[Ticket]] = []

    async def send(self, name: str, count: int = 1, work: Work = Work.READ) -> list[asyncio.Task[Ticket]]:
        """Have requests of a client come, one after the other."""
        tasks = []
        for _ in range(count):
            tasks.append(asyncio.create_task(self.gate.enter(work, name)))
            await settle()
        self._tasks += tasks
        return tasks

    async def end(self, task: asyncio.Task[Ticket], seconds: float = 0.0) -> None:
        """Let time pass, and have a request that runs give its slot back."""
        self.clock.now += seconds
        self.gate.leave(task.result())
        await settle()

    async def drain(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Crowd], Awaitable[None]], **options: int) -> None:
    async def run_and_drain() -> None:
        crowd = Crowd(**options)
        try:
            await asyncio.wait_for(test(crowd), 60)
        finally:
            await crowd.drain()

    asyncio.run(run_and_drain())


def is_refused(task: asyncio.Task[Ticket]) -> bool:
    return task.done() and isinstance(task.exception(), Busy)


def test_the_next_slot_goes_to_the_client_with_the_fewest_requests_that_run() -> None:
    async def test(crowd: Crowd) -> None:
        heavy = await crowd.send("heavy", 5)
        (light,) = await crowd.send("light")
        await crowd.end(heavy[0])
        assert light.done()
        assert not heavy[2].done()

    run(test, slots=2, min_queue=16)


def test_of_clients_with_as_many_that_run_the_one_is_served_that_held_slots_for_less_time() -> None:
    async def test(crowd: Crowd) -> None:
        for name, seconds in (("heavy", 0.2), ("light", 0.1)):
            (task,) = await crowd.send(name)
            await crowd.end(task, seconds)
        running, *_ = await crowd.send("other")
        heavy, light = await crowd.send("heavy") + await crowd.send("light")
        await crowd.end(running)
        assert light.done()
        await crowd.end(light)
        assert heavy.done()

    run(test)


def test_searches_that_were_answered_at_once_count_as_well() -> None:
    async def test(crowd: Crowd) -> None:
        crowd.gate.count_at_once(Work.SEARCH, 0.01, "heavy")
        running, *_ = await crowd.send("other")
        heavy, light = await crowd.send("heavy") + await crowd.send("light")
        await crowd.end(running)
        assert [heavy.done(), light.done()] == [False, True]

    run(test)


def test_a_flood_that_repeats_refused_requests_has_no_request_of_others_refused() -> None:
    async def test(crowd: Crowd) -> None:
        flood, refused, waited = list[asyncio.Task[Ticket]](), 0, list[float]()

        async def repeat_flood() -> None:
            nonlocal flood, refused
            refused += sum(map(is_refused, flood))
            flood = [task for task in flood if not is_refused(task)]
            flood += await crowd.send("flood", 32 - len(flood))

        for _ in range(50):
            sent_at = crowd.clock.now
            await repeat_flood()
            (patient,) = await crowd.send("patient")
            while not patient.done():
                (running,) = [task for task in flood if task.done() and not is_refused(task)]
                flood.remove(running)
                await crowd.end(running, 0.02)
                await repeat_flood()
            waited.append(crowd.clock.now - sent_at)
            await crowd.end(patient, 0.02)
        assert refused > 1000
        assert 0.01 < max(waited) < 0.03

    run(test)


def test_a_light_client_takes_the_place_of_the_newest_request_of_the_heaviest() -> None:
    async def test(crowd: Crowd) -> None:
        heavy = await crowd.send("heavy", 4, Work.PHOTO)
        (other,) = await crowd.send("other", 1, Work.PHOTO)
        assert crowd.gate.waiting == 4
        (light,) = await crowd.send("light", 1, Work.PHOTO)
        assert [is_refused(task) for task in (*heavy, other, light)] == [False, False, False, True, False, False]
        assert crowd.gate.waiting == 4
        crowd.gate.check(Work.PHOTO, "light")
        assert crowd.gate.waiting == 4, "a request whose body has not come takes no place"

    run(test)


def test_a_client_with_as_many_requests_takes_nobodys_place() -> None:
    async def test(crowd: Crowd) -> None:
        tasks = [task for name in "abcde" for task in await crowd.send(name, 1, Work.PHOTO)]
        (late,) = await crowd.send("f", 1, Work.PHOTO)
        assert is_refused(late)
        assert not any(map(is_refused, tasks))

    run(test)


def test_the_predicted_wait_counts_what_others_have_as_their_turns() -> None:
    async def test(crowd: Crowd) -> None:
        await crowd.send("heavy", 9)
        seconds = crowd.gate.estimates[Work.READ]
        assert crowd.gate.predict_wait(Work.READ, "light") == pytest.approx(seconds), "only the one that runs"
        await crowd.send("light", 2)
        assert crowd.gate.predict_wait(Work.READ, "light") == pytest.approx(5 * seconds), "two of each"
        assert crowd.gate.predict_wait(Work.READ, "heavy") == pytest.approx(11 * seconds)

    run(test, min_queue=16)


def test_of_too_many_that_wait_for_long_those_are_refused_whose_client_has_more_than_its_share() -> None:
    async def test(crowd: Crowd) -> None:
        await crowd.send("other")
        (light,), heavy = await crowd.send("light"), await crowd.send("heavy", 3)
        crowd.gate.estimates[Work.PHOTO] = 1.0
        crowd.clock.now += 0.9 * MAX_SLOT_SECONDS
        heavy += await crowd.send("heavy", 1, Work.PHOTO)
        assert not crowd.gate.is_overloaded
        assert not light.done()
        assert [is_refused(task) for task in heavy] == [True, False, False, False]

    run(test)


def test_with_too_many_different_clients_deadlines_count_for_all() -> None:
    async def test(crowd: Crowd) -> None:
        running, *waiting = [task for n in range(40) for task in await crowd.send(f"client {n}", 1, Work.PHOTO)]
        assert crowd.gate.is_overloaded
        assert crowd.gate.waiting == 4
        await crowd.end(running, crowd.gate.estimates[Work.PHOTO] * 1.01)
        assert all(map(is_refused, waiting))

    run(test)


def test_what_a_client_leaves_of_the_queue_is_for_the_others() -> None:
    async def test(crowd: Crowd) -> None:
        clients = crowd.gate.clients
        for name, count in (("a", 1.0), ("b", 7.0), ("c", 900.0)):
            clients.count_excess(clients.find(name, crowd.clock()), count, crowd.clock())
        overloaded = [clients.is_overloaded(clients.find(name, crowd.clock()), crowd.clock()) for name in "abc"]
        assert overloaded == [False, False, True]
        clients.count_excess(clients.find("b", crowd.clock()), 1.0, crowd.clock())
        assert clients.is_overloaded(clients.find("b", crowd.clock()), crowd.clock()), "7.5 are its share of 16"

    run(test, min_queue=16)


def test_a_flood_leaves_a_slot_to_others() -> None:
    async def test(crowd: Crowd) -> None:
        flood = await crowd.send("flood", 30)
        running = [task for task in flood if task.done() and not is_refused(task)]
        assert len(running) == 2
        await crowd.end(running[0])
        assert not crowd.gate.has_free_slot("flood")
        assert crowd.gate.has_free_slot("light")
        (light,) = await crowd.send("light")
        assert light.done()

    run(test, slots=2)


def test_slow_requests_of_one_client_leave_room_for_others() -> None:
    async def test(crowd: Crowd) -> None:
        for _ in range(MAX_RUNNING_OF_CLIENT + 5):
            await crowd.send("stuck", 1, Work.WRITE)
            crowd.clock.now += MAX_SLOT_SECONDS
        (light,) = await crowd.send("light")
        assert light.done()
        assert crowd.gate.waiting == 5

    run(test, min_queue=100)


def test_a_refusal_is_kept_back_from_a_client_that_repeats_refused_requests_at_once() -> None:
    async def test(crowd: Crowd) -> None:
        flood = await crowd.send("flood", 100)
        assert sum(map(is_refused, flood)) > 80
        assert crowd.gate.find_refusal_delay("flood") == 0.0
        await crowd.send("flood", 100)
        assert 0.2 < crowd.gate.find_refusal_delay("flood") < MAX_REFUSAL_SECONDS
        await crowd.send("flood", 1000)
        assert crowd.gate.find_refusal_delay("flood") == MAX_REFUSAL_SECONDS
        assert crowd.gate.find_refusal_delay("light") == 0.0

    run(test)


def test_the_table_of_clients_is_bounded_and_forgets_those_that_are_idle() -> None:
    async def test(crowd: Crowd) -> None:
        clients = crowd.gate.clients
        (running,) = await crowd.send("slow")
        for number in range(3 * MAX_CLIENTS):
            crowd.gate.count_at_once(Work.SEARCH, 0.001, f"client {number}")
        assert len(clients) == MAX_CLIENTS
        more = {id(clients.find(f"more {number}", crowd.clock())) for number in range(50)}
        assert len(more) == 1, "together they have the share of one client"
        crowd.clock.now += 20 * RECENT_SECONDS
        clients.find("new", crowd.clock())
        assert len(clients) == 2
        assert clients.find("slow", crowd.clock()) is running.result().client

    run(test)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_requests_are_counted_by_the_key_of_their_caller() -> None:
    async def test(crowd: Crowd) -> None:
        running, *_ = await crowd.send("key-1", 30)
        sent: dict[str, list[Any]] = {"key-1": [], "key-2": []}

        async def request(key: str) -> None:
            state = {"requirements": {"x-role": "reader"}, "caller": Caller(key, "reader"), "request_id": "r"}
            scope = {"type": "http", "method": "GET", "headers": [], "state": state}

            async def send(message: Any) -> None:
                sent[key].append(message)

            await AdmissionMiddleware(answer, crowd.gate)(scope, None, send)  # type: ignore[arg-type]

        patient = asyncio.create_task(request("key-2"))
        await request("key-1")
        assert sent["key-1"][0]["status"] == 503
        assert (b"retry-after", b"1") in sent["key-1"][0]["headers"]
        assert json.loads(sent["key-1"][1]["body"])["code"] == "Throttling"
        await crowd.end(running, 0.02)
        await patient
        assert sent["key-2"][0]["status"] == 200

    run(test)


def test_a_refusal_is_answered_after_its_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(crowd: Crowd) -> None:
        await crowd.send("", 30)
        monkeypatch.setattr(crowd.gate, "find_refusal_delay", lambda name: 0.05)
        sent, started = list[Any](), time.monotonic()

        async def send(message: Any) -> None:
            sent.append((message, time.monotonic() - started))

        scope = {"type": "http", "method": "GET", "headers": [], "state": {"requirements": {"x-role": "reader"}}}
        await AdmissionMiddleware(answer, crowd.gate)(scope, None, send)  # type: ignore[arg-type]
        assert sent[0][0]["status"] == 503
        assert sent[0][1] >= 0.05

    run(test)


@pytest.mark.parametrize("is_list", [True, False])
def test_a_flood_by_one_key_leaves_the_service_to_others(tmp_path: Path, is_list: bool) -> None:
    settings = Settings(home=tmp_path, default_recogniser="lbp", request_slots=2, workers=1)
    with run_service(settings) as service:
        rows, subjects = people(200, 3, dim=16)
        model = make_model("m-1", dim=16)
        GalleryWriter(service.resources).make(model).add({model.id: rows}, subjects)
        service.wait_for_indexes()
        flood, patient = open_address(service), open_address(service)
        search = json.dumps({"vector": rows[0].tolist()}).encode()
        heavy = flood.format_request("GET", "/v1/collections/staff/faces?limit=1000")
        if not is_list:
            heavy = flood.format_request("POST", "/v1/collections/staff/search:by-embedding?limit=50", search)
        requests = [
            patient.format_request("POST", "/v1/collections/staff/search:by-embedding", search),
            patient.format_request("GET", "/v1/collections/staff/subjects?limit=5"),
            patient.format_request("PATCH", f"/v1/collections/staff/subjects/{subjects[0]}", b'{"external_id": "x"}'),
        ]
        made_up = Address(flood.host, flood.port, "lk_made_up").format_request("GET", "/v1/collections/staff")
        answers, seconds, flooded = asyncio.run(send_beside_flood(flood, heavy, patient, [*requests, made_up]))
    made_up_answers = answers[len(requests) :: len(requests) + 1]
    assert set(made_up_answers) <= {401, 429}, "too many wrong keys a minute are refused, on a quick machine"
    statuses = [status for n, status in enumerate(answers) if n % (len(requests) + 1) < len(requests)]
    assert sum(200 <= status < 300 for status in statuses) >= MIN_ANSWERED_SHARE * len(statuses), statuses
    assert sorted(seconds)[len(seconds) // 2] < MAX_MEDIAN_SECONDS
    assert flooded.count(503) > len(flooded) / 10 or not is_list
    assert set(flooded) <= {200, 503}


def open_address(service: Service) -> Address:
    """Return the address of a service with a new key."""
    url = httpx.URL(service.url)
    secret = service.key("operator", "staff")["Authorization"].removeprefix("Bearer ")
    return Address(url.host, url.port or 80, secret)


async def send_beside_flood(
    flood: Address, heavy: bytes, patient: Address, requests: list[bytes]
) -> tuple[list[int], list[float], list[int]]:
    """Send requests one after the other, at least MIN_ROUNDS times, while many connections repeat a heavy one.

    Returns the statuses and seconds of the former, and the statuses of the latter.
    """
    pool, patient_pool = ConnectionPool(flood), ConnectionPool(patient)
    answers, seconds, flooded = list[int](), list[float](), list[int]()
    end = time.perf_counter() + FLOOD_SECONDS

    def goes_on() -> bool:
        return time.perf_counter() < end or len(answers) < MIN_ROUNDS * len(requests)

    async def repeat() -> None:
        while goes_on():
            flooded.append((await pool.send(heavy)).status)

    async def ask() -> None:
        await asyncio.sleep(0.3)
        while goes_on():
            for request in requests:
                started = time.perf_counter()
                got: Answer = await patient_pool.send(request)
                answers.append(got.status)
                seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(repeat() for _ in range(FLOOD_CONNECTIONS)), ask())
    await asyncio.gather(pool.close(), patient_pool.close())
    return answers, seconds, flooded
