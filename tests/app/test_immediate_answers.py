"""What is answered before all layers is answered, counted and recorded as by them."""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.access import key_cache, keys
from app.config import Settings
from app.db.session import writing
from app.deps.admission.work import REQUESTS, WAIT_SECONDS
from app.deps.caller import Caller
from app.deps.server.immediate_answers import (
    MAX_ARRIVAL_SECONDS,
    SINGLE_BATCHES,
    ImmediateAnswersMiddleware,
    ReadRequest,
    _Received,
)
from app.document.api import DocumentedApi
from app.main import create_app
from app.resources import Resources
from app.search import candidates
from app.serving.calibration import schedule as calibration_schedule
from app.storage.audit_log.drafts import EntryDraft
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people

MAX_CALLS = 360
"""Of Python and C functions, for each of 16 searches that are answered together, beside those of HTTP and of keys."""
MODEL = make_model("m-one")
ROWS, NAMES = people(20, 3)
RIGHT = json.dumps({"vector": ROWS[0].tolist()}).encode()
PATHS = [
    "/v1/collections/staff/search:by-embedding",
    "/v1/collections/nobody/search:by-embedding",
    "/v1/collections//search:by-embedding",
    "/v1/collections/st/aff/search:by-embedding",
    "/v1/collections/staff/search:by-embedding/",
]
QUERIES = [
    b"",
    b"limit=3", b"limit=3&group_by=face", b"fpir=0.5", b"limit=50", b"limit=3&limit=4", b"limit=51", b"limit=",
    b"sort=1", b"m=1", b"include=crop", b"task=age", b"&" * 101,
]  # fmt: skip
BODIES = [
    RIGHT,
    json.dumps({"vector": ROWS[7].tolist()}).encode(), b"", b"{", b"[1]", b'{"vector": []}', b'{"vector": [1, 2.5]}',
    b'{"vector": [NaN]}', b'{"vector": [1e999]}', b'{"vector": [true]}', b'{"vector": ["1"]}', b'{"vector": [1e16]}',
    b'{"vector": [1], "k": 3}', b'{"vector": [1], ' + RIGHT[1:], RIGHT.decode().encode("utf-16"),
    b'{"vector": ' + b"[" * 65 + b"]" * 65 + b"}", RIGHT + b" " * 70_000, b'{"vector": [10000000000000000000000000]}',
]  # fmt: skip
TYPES = [
    [(b"content-type", b"application/json")],
    [], [(b"content-type", b"application/json; charset=utf-8")], [(b"content-type", b"text/plain")],
    [(b"content-type", b"application/json"), (b"content-type", b"text/plain")],
]  # fmt: skip
OTHER_HEADERS = [
    [],
    [(b"idempotency-key", b"same")], [(b"x-change-number", b"1")], [(b"x-change-number", b"0")],
    [(b"x-change-number", b"many")], [(b"x-change-number", b"1"), (b"x-change-number", b"0")],
    [(b"x-request-id", b"x" * 200)], [(b"x-request-id", b"\xe9")], [(b"accept", b"text/html")], [(b"expect", b"what")],
]  # fmt: skip


@pytest.fixture
def gallery(lasting_sqlite: Resources, monkeypatch: pytest.MonkeyPatch) -> Iterator[GalleryWriter]:
    """Twenty people with three photos each, whose index counts as fast however slow this machine is."""
    monkeypatch.setattr("app.serving.engine.MAX_IMMEDIATE_SECONDS", 10.0)
    monkeypatch.setattr(calibration_schedule, "needs_recalibration", lambda *_: False)
    made = GalleryWriter(lasting_sqlite).make(MODEL)
    made.add({MODEL.id: ROWS}, NAMES)
    yield made
    delete_collections(lasting_sqlite.database)


class Entries(list[EntryDraft]):
    """Keeps entries of the audit log where a test sees them."""


class Api:
    """An application without a server. entrance: what answers at once; chain: the layers behind it"""

    def __init__(self, app: DocumentedApi, state: dict[str, Any]) -> None:
        assert isinstance(app._entrance, ImmediateAnswersMiddleware)
        self.app, self.entrance, self.entries = app, app._entrance, Entries()
        self.chain, self.passed_on = app._entrance.app, 0
        self.state = state | {"audit_spool": self.entries}
        app._entrance.app = self._pass_on
        app._entrance.steps.checks.cache.seconds = 3600.0  # type: ignore[attr-defined]

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.passed_on += 1
        await self.chain(scope, receive, send)

    async def ask(self, app: Any, request: dict[str, Any], chunks: list[bytes]) -> tuple[Any, ...]:
        """Send a request, and return all that is seen of its answer, and what was recorded and counted."""
        before, entries = self._read_counts(), len(self.entries)
        waiting, sent = list(chunks), list[Message]()

        async def receive() -> Message:
            if not waiting:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = request | {"state": dict(self.state), "headers": list(request["headers"])}
        await app(scope, receive, send)
        counted = {key: value - before.get(key, 0) for key, value in self._read_counts().items()}
        recorded = [draft[2:] for draft in self.entries[entries:]]
        headers = sorted((name, value) for name, value in sent[0]["headers"])
        body = b"".join(message.get("body", b"") for message in sent[1:])
        changed = {key: value for key, value in counted.items() if value}
        return sent[0]["status"], headers, body, recorded, changed

    def _read_counts(self) -> dict[Any, float]:
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for metric in (self.app.state.meter.requests, self.app.state.meter.seconds, REQUESTS, WAIT_SECONDS)
            for family in metric.collect()
            for sample in family.samples
            if sample.name.endswith(("_total", "_count"))
        }


@asynccontextmanager
async def open_api(settings: Settings) -> AsyncIterator[Api]:
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:
        yield Api(app, dict(state))


def make_request(secret: str, **changed: Any) -> dict[str, Any]:
    request: dict[str, Any] = {
        "type": "http", "method": "POST", "path": PATHS[0], "query_string": b"", "root_path": "",
        "client": ("192.0.2.7", 50_000), "http_version": "1.1",
    }  # fmt: skip
    body: bytes = changed.pop("body", RIGHT)
    headers = changed.pop("headers", [(b"content-type", b"application/json")])
    if not any(name == b"x-request-id" for name, _ in headers):
        headers = [*headers, (b"x-request-id", b"same")]
    length = [(b"content-length", str(len(body)).encode())]
    return request | changed | {"headers": [(b"x-api-key", secret.encode()), *length, *headers]}


async def wait_until_answered(api: Api, secret: str) -> None:
    """Wait until a search is answered at once."""
    limit = time.monotonic() + 30
    while api.passed_on >= 0 and time.monotonic() < limit:
        passed_on = api.passed_on
        status, *_ = await api.ask(api.app, make_request(secret), [RIGHT])
        if status == 200 and api.passed_on == passed_on:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no search was answered at once")


def note_batch_sizes(api: Api) -> list[int]:
    """Return a list to which each batch adds the number of its requests."""
    sizes = list[int]()
    answer = api.entrance.route.answer

    def note_size(requests: Any) -> Any:
        sizes.append(len(requests))
        return answer(requests)

    api.entrance.route = api.entrance.route._replace(answer=note_size)
    return sizes


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 240))


def test_drawn_requests_are_answered_as_by_the_layers(gallery: GalleryWriter) -> None:
    resources, draw = gallery.resources, random.Random(7)
    with writing(resources.database) as session:
        secrets = [keys.create_key(session, "reader", "a", bound)[1] for bound in ((), ("staff",), ("other",))]
    secrets += ["lk_wrong", ""]
    settings = resources.settings.model_copy(update={"max_wrong_keys_per_minute": 0})

    def pick(values: list[Any]) -> Any:
        """Return the first value mostly, which is a usual one."""
        return values[0] if draw.random() < 0.7 else draw.choice(values)

    async def test() -> None:
        async with open_api(settings) as api:
            await wait_until_answered(api, secrets[0])
            at_once = 0
            for _ in range(250):
                headers = [*pick(TYPES), *pick(OTHER_HEADERS)]
                body, secret, path, query = pick(BODIES), pick(secrets), pick(PATHS), pick(QUERIES)
                request = make_request(secret, path=path, query_string=query, body=body, headers=headers)
                chunks = [body[:9], body[9:]] if draw.random() < 0.1 else [body]
                passed_on = api.passed_on
                answered = await api.ask(api.app, request, chunks)
                at_once += api.passed_on == passed_on
                assert answered == await api.ask(api.chain, request, chunks), (request, body)
            assert at_once > 50

    run(test)


def test_a_key_that_is_sent_twice_is_refused_by_the_layers(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "a")[1]
    body = RIGHT[:-1] + b", " + RIGHT[1:]

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            status, _, refusal, *_ = await api.ask(api.app, make_request(secret, body=body), [body])
            assert (status, "'vector' twice" in json.loads(refusal)["detail"]) == (422, True)

    run(test)


def test_the_limits_of_a_key_count_what_is_answered_at_once(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        patient, busy = (keys.create_key(session, "reader", "a")[1] for _ in range(2))
    settings = resources.settings.model_copy(update={"max_key_requests_per_minute": 500})

    async def test() -> None:
        async with open_api(settings) as api:
            await wait_until_answered(api, patient)
            statuses = [(await api.ask(api.app, make_request(busy), [RIGHT]))[0] for _ in range(510)]
            assert 500 <= statuses.count(200) < 510  # a minute may end meanwhile
            assert set(statuses) == {200, 429}

    run(test)


def test_a_revoked_key_and_a_full_gate_are_left_to_the_layers(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        key, secret = keys.create_key(session, "reader", "a")

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            gate = api.entrance.steps.gate
            tickets = [await gate.enter(api.entrance.route.work) for _ in range(gate.slots)]
            waiting = asyncio.create_task(api.ask(api.app, make_request(secret), [RIGHT]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            for ticket in tickets:
                gate.leave(ticket)
            assert (await waiting)[0] == 200
            with writing(resources.database) as session:
                keys.revoke_key(session, key.id)
            resources.notifier.notify("keys")
            api.entrance.steps.checks.cache.clear()  # type: ignore[attr-defined]
            assert (await api.ask(api.app, make_request(secret), [RIGHT]))[0] == 401

    run(test)


def test_a_key_that_is_revoked_while_a_body_arrives_is_left_to_the_layers(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        key, secret = keys.create_key(session, "reader", "a")

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            statuses = list[int]()

            async def receive() -> Message:
                await asyncio.sleep(2 * MAX_ARRIVAL_SECONDS)
                with writing(resources.database) as session:
                    keys.revoke_key(session, key.id)
                api.entrance.steps.checks.cache.clear()  # type: ignore[attr-defined]
                return {"type": "http.request", "body": RIGHT, "more_body": False}

            async def send(message: Message) -> None:
                statuses.append(message.get("status", 0))

            await api.app(make_request(secret) | {"state": dict(api.state)}, receive, send)
            assert statuses[0] == 401

    run(test)


def test_requests_that_come_together_are_answered_as_alone(
    gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MAX_CANDIDATES", 96)  # each has all of them, unlike the faces of one photo
    resources = gallery.resources
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "a")[1]
    vectors = [ROWS[i].tolist() for i in range(40)] + [[1.0], ROWS[3].tolist()]
    bodies = [json.dumps({"vector": vector}).encode() for vector in vectors]
    queries = [b"limit=2", b"limit=2", b"limit=2", b"", b"limit=50"]

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            sizes = note_batch_sizes(api)
            asked = [
                (make_request(secret, query_string=queries[i % len(queries)], body=body), [body])
                for i, body in enumerate(bodies)
            ]
            passed_on = api.passed_on
            together = await asyncio.gather(*(api.ask(api.app, *one) for one in asked))
            assert sizes == [1, 16, 16, 9], (
                "the first is answered where it is read, before it is known that others came"
            )
            assert api.passed_on == passed_on + 1, "only the vector of another length"
            for _ in range(SINGLE_BATCHES):
                assert api.entrance._come_together
                await api.ask(api.app, *asked[0])
            assert sizes[4:] == [1] * SINGLE_BATCHES
            assert not api.entrance._come_together
            alone = [await api.ask(api.chain, *one) for one in asked]
            assert [answered[:3] for answered in together] == [answered[:3] for answered in alone]
            assert len(api.entries) >= 2 * len(asked) + 1

    run(test)


def test_requests_that_are_read_in_turn_after_turn_come_together(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "a")[1]

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)

            async def ask_after(turns: int) -> int:
                for _ in range(turns):
                    await asyncio.sleep(0)
                status, *_ = await api.ask(api.app, make_request(secret), [RIGHT])
                return int(status)

            sizes = note_batch_sizes(api)
            await asyncio.sleep(0)  # the turn of the last search ends
            api.entrance._come_together = True
            statuses = await asyncio.gather(*(ask_after(turns) for turns in range(22)))
            assert set(statuses) == {200}
            assert sizes == [16, 6]

    run(test)


def test_searches_that_come_together_call_few_functions(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "a")[1]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            bodies = [json.dumps({"vector": row.tolist()}).encode() for row in ROWS[:16]]
            caller = Caller("a", "reader")
            scopes = [make_request(secret) | {"state": dict(api.state)} for _ in bodies]
            requests = [ReadRequest(scope, "staff", body) for scope, body in zip(scopes, bodies, strict=True)]
            received = [_Received(request, caller) for request in requests]
            known = api.entrance._answer_all(received)  # reads the templates of the people
            sys.setprofile(count)
            try:
                answers = api.entrance._answer_all(received)
            finally:
                sys.setprofile(None)
            assert answers == known
            assert None not in answers
            assert len({draft.id for draft in api.entries}) == len(api.entries)

    run(test)
    assert calls / 16 < MAX_CALLS


def test_clients_whose_requests_come_together_take_turns_and_let_others_run_meanwhile(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        heavy, light = (keys.create_key(session, "reader", name)[1] for name in "ab")

    async def test() -> None:
        async with open_api(resources.settings) as api:
            for secret in (heavy, light):
                await wait_until_answered(api, secret)
            events = list[str]()
            answer = api.entrance.route.answer

            def note_batch(requests: Any) -> Any:
                secrets = [dict(request.scope["headers"])[b"x-api-key"].decode() for request in requests]
                events.append(f"heavy {secrets.count(heavy)} light {secrets.count(light)}")
                asyncio.get_running_loop().call_soon(events.append, "other")
                return answer(requests)

            api.entrance.route = api.entrance.route._replace(answer=note_batch)
            asked = [api.ask(api.app, make_request(secret), [RIGHT]) for secret in [heavy] * 41 + [light] * 2]
            answers = await asyncio.gather(*asked)
            assert {status for status, *_ in answers} == {200}
            assert events[:2] == ["heavy 1 light 0", "other"]
            assert events[2:7] == ["heavy 14 light 2", "other", "heavy 16 light 0", "other", "heavy 10 light 0"]

    run(test)


def test_requests_that_come_together_fail_together(gallery: GalleryWriter) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "a")[1]

    def fail(*_: object) -> None:
        raise OSError("no entry")

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            api.entrance.steps = api.entrance.steps._replace(record=fail)
            api.entrance._come_together = True
            asked = [api.ask(api.app, make_request(secret), [RIGHT]) for _ in range(20)]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [str(error) for error in failed] == ["no entry"] * 20

    run(test)


def test_a_key_is_looked_up_again_while_requests_go_on(gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = gallery.resources
    with writing(resources.database) as session:
        key, secret = keys.create_key(session, "reader", "a")
    monkeypatch.setattr(key_cache, "RENEWAL_SHARE", 0.0)

    async def test() -> None:
        async with open_api(resources.settings) as api:
            await wait_until_answered(api, secret)
            renewals: dict[str, asyncio.Task[None]] = api.entrance.steps.checks._renewals  # type: ignore[attr-defined]
            await asyncio.gather(*renewals.values())
            passed_on = api.passed_on
            for _ in range(2):
                assert (await api.ask(api.app, make_request(secret), [RIGHT]))[0] == 200
                [renewal] = renewals.values()
                await renewal
                assert not renewals
            assert api.passed_on == passed_on
            with writing(resources.database) as session:
                keys.revoke_key(session, key.id)
            await api.ask(api.app, make_request(secret), [RIGHT])
            await asyncio.gather(*renewals.values())
            assert (await api.ask(api.app, make_request(secret), [RIGHT]))[0] == 401

    run(test)
