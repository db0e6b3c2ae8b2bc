"""What AuthMiddleware lets through, what it answers itself, and what it tells the application. No server runs."""

import asyncio
import gc
import re
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter
from sqlalchemy import delete, select
from sqlalchemy.exc import OperationalError
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from app.access import keys
from app.access.middleware import AuthMiddleware
from app.access.request_checks import MULTIPART_OVERHEAD_BYTES, RequestChecks
from app.config import Settings
from app.db.servers import reach
from app.db.servers.reach import DatabaseReach
from app.db.session import writing
from app.db.tables import Job, Key, now
from app.deps import held_bytes
from app.deps.caller import Caller
from app.deps.held_bytes import FREE_BODY_BYTES, HeldBytes
from app.deps.roles import ADMIN, ARCHIVE, OPERATOR, PHOTO, READ, READER
from app.deps.scopes import COLLECTION, INSTALLATION, JOB, NEW_COLLECTION, NOTHING
from app.errors import TooLarge
from app.queue.jobs import enqueue
from app.queue.messages import ExamineGallery
from app.queue.notifier import Notifier
from app.resources import Resources
from app.storage.request_timestamp import TIMESTAMP_FILE
from tests.asgi import Answer, call

MINE, OTHER = "mine", "other"
ROUTES = (
    ("GET", "/open", {}),
    ("GET", "/alive", NOTHING),
    ("GET", "/things", READER | NOTHING),
    ("POST", "/things", {**OPERATOR, **NOTHING, "x-secret": "key"}),
    ("POST", "/photos", READER | NOTHING | PHOTO),
    ("POST", "/searches", READER | NOTHING | PHOTO | READ),
    ("POST", "/archives", OPERATOR | NOTHING | ARCHIVE),
    ("PUT", "/settings", ADMIN | INSTALLATION),
    ("GET", "/collections/{collection}/things", READER | COLLECTION),
    ("PUT", "/collections/{collection}", OPERATOR | NEW_COLLECTION),
    ("GET", "/found", READER | COLLECTION),
    ("GET", "/jobs/{job_id}", READER | JOB),
)


@dataclass
class Inner:
    """The application behind the middleware: it reads the body, and answers 200 with the number of its bytes.

    scope: of the last request that it was given
    """

    scope: Scope = field(default_factory=dict)
    passed_on: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        if scope["type"] != "http":
            self.passed_on = (receive, send)
            return
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-inner", b"1")]})
        await send({"type": "http.response.body", "body": str(size).encode()})


def search_collection(collection: str = "") -> None:
    """A route that is scoped by a parameter of its query."""


@dataclass
class Api:
    """The middleware before an application, and the secrets of keys."""

    resources: Resources
    settings: Settings
    inner: Any = field(default_factory=Inner)

    def __post_init__(self) -> None:
        router = APIRouter()
        for method, path, extra in ROUTES:
            answer = search_collection if path == "/found" else lambda: None
            router.add_api_route(path, answer, methods=[method], openapi_extra=dict(extra) or None)
        router.routes.append(Route("/plain", lambda _: None))
        self.held: Any = SimpleNamespace(
            database=self.resources.database, notifier=Notifier(), home=self.resources.home, reach=None
        )
        self.checks = RequestChecks(router.routes, self.settings, lambda: self.held)
        self.middleware = AuthMiddleware(self.inner, self.checks)

    def make_key(self, role: str = "reader", *bound: str, **more: Any) -> str:
        with writing(self.resources.database) as session:
            return keys.create_key(session, role, "a name", bound, **more)[1]  # type: ignore[arg-type]

    def send(self, method: str, path: str, secret: str = "", **request: Any) -> Answer:
        headers = [("x-api-key", secret)] if secret else []
        return call(self.middleware, method, path, headers=[*headers, *request.pop("headers", ())], **request)


@pytest.fixture
def api(lasting_sqlite: Resources) -> Iterator[Api]:
    """The middleware with 1,000 bytes for JSON, 3,000 for a photo and 5,000 for an archive."""
    limits = {"max_json_bytes": 1000, "max_image_bytes": 3000, "max_import_bytes": 5000, "poll_seconds": 60.0}
    made = Api(lasting_sqlite, lasting_sqlite.settings.model_copy(update=limits))
    made.checks.cache.seconds = 3600.0  # however slow this machine is
    yield made
    with writing(lasting_sqlite.database) as session:
        session.execute(delete(Key))
        session.execute(delete(Job))


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a test from counting in two minutes."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_010.0)  # half of a minute has passed


def read_problem(answer: Answer) -> tuple[int, str, str]:
    """Return status, code and detail of a problem; check what every problem has."""
    assert answer.get_header("content-type") == "application/problem+json"
    assert answer.get_header("content-length") == str(len(answer.body))
    assert answer.get_header("connection") == "close"
    problem = answer.json()
    assert answer.get_header("x-request-id") == problem["request_id"]
    return answer.status, problem["code"], problem["detail"]


@pytest.mark.parametrize("path", ["/things", "/collections/mine/things"])
def test_a_key_is_needed_below_the_prefix_of_a_proxy_too(api: Api, path: str) -> None:
    assert api.send("GET", path).status == 401
    assert api.send("GET", f"/likeness/v2{path}", root_path="/likeness/v2").status == 401
    assert api.send("GET", f"/likeness/v2{path}", api.make_key(), root_path="/likeness/v2").status == 200


@pytest.mark.parametrize("prefix", ["", "/", "/things", "/things/", "/collections/", "/collections/mine", "/like"])
@pytest.mark.parametrize("path", ["/things", "/things/", "/collections/mine/things", "/likeness/things"])
def test_a_key_is_needed_wherever_the_framework_finds_a_route(api: Api, path: str, prefix: str) -> None:
    scope: Scope = {"type": "http", "method": "GET", "path": path, "root_path": prefix, "headers": []}
    routes = [route for routes in api.checks._routes.values() for route in routes]
    is_keyed = any(route.matches(dict(scope))[0] == Match.FULL for route in routes)
    assert (api.send("GET", path, root_path=prefix).status == 401) == is_keyed


def test_the_application_learns_who_calls_what(api: Api) -> None:
    secret = api.make_key("operator", MINE)
    headers = [("x-request-id", "from-the-client")]
    answer = api.send("GET", f"/collections/{MINE}/things", secret, headers=headers)
    assert (answer.status, answer.get_header("x-inner")) == (200, "1")
    assert answer.get_header("x-request-id") == "from-the-client"
    state = api.inner.scope["state"]
    caller = state["caller"]
    assert (caller.role, caller.name, caller.collections) == ("operator", "a name", (MINE,))
    assert state["request_id"] == "from-the-client"
    assert state["path_params"] == {"collection": MINE}
    assert state["requirements"] == READER | COLLECTION
    assert state["secret_field"] is None
    api.send("POST", "/things", secret)
    assert api.inner.scope["state"]["secret_field"] == "key"


def test_a_request_without_an_id_gets_one_and_a_long_one_is_cut(api: Api) -> None:
    first, second = (api.send("GET", "/open").get_header("x-request-id") or "" for _ in range(2))
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert first != second
    answer = api.send("GET", "/open", headers=[("x-request-id", "i" * 200)])
    assert answer.get_header("x-request-id") == "i" * 100


def test_a_route_without_a_role_needs_no_key_and_has_no_caller(api: Api) -> None:
    assert api.send("GET", "/open").status == 200
    assert "caller" not in api.inner.scope["state"]
    assert api.inner.scope["state"]["requirements"] == {}


def test_what_no_route_answers_reaches_the_application_without_a_key_and_without_a_limit(api: Api) -> None:
    for method, path in (("GET", "/nowhere"), ("DELETE", "/things")):
        answer = api.send(method, path, headers=[("content-length", "900000000")], chunks=[b"x" * 6000])
        assert (answer.status, answer.body) == (200, b"6000")
        assert api.inner.scope["state"]["path_params"] == {}


def test_what_is_no_request_is_passed_on(api: Api) -> None:
    async def start() -> None:
        await api.middleware({"type": "lifespan"}, "receive", "send")  # type: ignore[arg-type]

    asyncio.run(start())
    assert (api.inner.scope, api.inner.passed_on) == ({"type": "lifespan"}, ("receive", "send"))


def test_a_request_may_come_without_a_state_and_a_route_without_declarations(api: Api) -> None:
    scope: Scope = {"type": "http", "method": "GET", "path": "/plain", "query_string": b"", "headers": []}
    sent: list[Message] = []

    async def run() -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        await api.middleware(scope, receive, send)

    asyncio.run(run())
    assert (sent[0]["status"], scope["state"]["requirements"]) == (200, {})


def test_an_application_that_answers_nothing_is_left_alone(lasting_sqlite: Resources, api: Api) -> None:
    async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
        return

    assert Api(lasting_sqlite, api.settings, answer_nothing).send("GET", "/open").status == 0


def test_a_request_without_a_key_is_told_how_to_send_one(api: Api) -> None:
    for headers in ([], [("authorization", "Basic abc")], [("authorization", "Bearer  ")], [("x-api-key", "")]):
        answer = api.send("GET", "/things", headers=headers)
        expected = (401, "AccessDenied", "send a key: Authorization: Bearer KEY, or x-api-key: KEY")
        assert read_problem(answer) == expected
        assert answer.get_header("www-authenticate") == "Bearer"
        assert answer.get_header("retry-after") is None


def test_a_key_is_read_from_either_header_and_the_bearer_scheme_in_any_case(api: Api) -> None:
    secret = api.make_key()
    for headers in (
        [("x-api-key", secret)],
        [("authorization", f"Bearer {secret}")],
        [("authorization", f"bearer   {secret} ")],
        [("authorization", "Basic abc"), ("x-api-key", secret)],
    ):
        assert api.send("GET", "/things", headers=headers).status == 200, headers


def test_a_wrong_key_is_refused(api: Api) -> None:
    answer = api.send("GET", "/things", "lk_wrong")
    assert read_problem(answer) == (401, "AccessDenied", "this key is unknown or was revoked")


def test_a_lower_role_is_refused_in_words_that_name_both(api: Api) -> None:
    answer = api.send("POST", "/things", api.make_key("reader"))
    expected = (403, "AccessDenied", "this operation needs the role operator; the key has the role reader")
    assert read_problem(answer) == expected
    assert answer.get_header("www-authenticate") is None
    assert api.send("POST", "/things", api.make_key("admin")).status == 200


def test_a_bound_key_reaches_only_its_collections(api: Api) -> None:
    secret = api.make_key("admin", MINE)
    assert api.send("GET", f"/collections/{MINE}/things", secret).status == 200
    assert api.send("PUT", f"/collections/{MINE}", secret).status == 200
    hidden = api.send("GET", f"/collections/{OTHER}/things", secret)
    assert read_problem(hidden) == (404, "ResourceNotFound", f"no collection {OTHER!r}")
    assert api.send("PUT", f"/collections/{OTHER}", secret).status == 403
    assert api.send("PUT", "/settings", secret).status == 403
    assert [api.send("GET", "/found", secret, query=f"collection={name}").status for name in (MINE, OTHER)] == [
        200,
        404,
    ]
    unbound = api.make_key("admin")
    assert api.send("GET", f"/collections/{OTHER}/things", unbound).status == 200
    assert api.send("PUT", "/settings", unbound).status == 200


def test_a_parameter_that_the_route_does_not_know_is_refused(api: Api) -> None:
    secret = api.make_key("admin")
    wrong = api.send("GET", "/found", secret, query="collection=a&aligned=true")
    expected = "unknown parameter 'aligned' in the query, which takes collection: see /docs"
    assert read_problem(wrong) == (422, "InvalidParameter", expected)
    wrong = api.send("PUT", "/settings", secret, query="colour=")
    assert read_problem(wrong)[2] == "unknown parameter 'colour' in the query, which takes none: see /docs"
    assert api.send("PUT", "/settings", query="colour=").status == 401, "it is not said to everybody"


def test_a_row_in_the_path_is_looked_up_only_for_bound_keys(api: Api) -> None:
    with writing(api.resources.database) as session:
        own, others = (enqueue(session, ExamineGallery(collection=name)).id for name in (MINE, OTHER))
    secret = api.make_key("reader", MINE)
    assert api.send("GET", f"/jobs/{own}", secret).status == 200
    assert read_problem(api.send("GET", f"/jobs/{others}", secret)) == (404, "ResourceNotFound", f"no job {others!r}")
    assert api.send("GET", "/jobs/none", api.make_key()).status == 200, "the route answers what does not exist"


def test_a_token_is_verified_and_no_key_where_tokens_are_accepted(api: Api) -> None:
    verified: list[str] = []

    async def verify(token: str) -> Caller | None:
        verified.append(token)
        return Caller("oidc:anna", "reader") if token == "eyJ.right.token" else None

    secret = api.make_key()
    assert api.send("GET", "/things", "eyJ.right.token").status == 401, "without an issuer it is a wrong key"
    api.checks.tokens = SimpleNamespace(find_caller=verify)  # type: ignore[assignment]
    answers = [api.send("GET", "/things", sent).status for sent in ("eyJ.right.token", "eyJ.wrong.token", secret)]
    assert answers == [200, 401, 200]
    assert verified == ["eyJ.right.token", "eyJ.wrong.token"]


def test_a_key_is_not_looked_up_again_until_the_notification_of_a_revocation(api: Api) -> None:
    secret = api.make_key()
    assert api.send("GET", "/things", secret).status == 200
    with writing(api.resources.database) as session:
        session.execute(delete(Key))
    assert api.send("GET", "/things", secret).status == 200, "it was looked up a moment ago"
    api.held.notifier.notify("jobs")
    assert api.send("GET", "/things", secret).status == 200
    api.held.notifier.notify("keys")
    assert api.send("GET", "/things", secret).status == 401


@dataclass
class Meanwhile(Inner):
    """Something happens after the first part of a body has been read."""

    happen: Callable[[], object] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()
        assert first["more_body"]
        self.happen()
        await super().__call__(scope, receive, send)


@pytest.mark.parametrize(("method", "path"), [("POST", "/things"), ("POST", "/photos"), ("POST", "/archives")])
def test_a_key_that_is_revoked_while_a_body_arrives_is_refused(api: Api, method: str, path: str) -> None:
    def revoke() -> None:
        with writing(api.resources.database) as session:
            session.execute(delete(Key))
        api.held.notifier.notify("keys")

    api.middleware.app = Meanwhile(happen=revoke)
    answer = api.send(method, path, api.make_key("admin"), chunks=[b"a", b"b", b"c"])
    assert read_problem(answer) == (401, "AccessDenied", "this key is unknown or was revoked")


def test_a_key_that_expires_while_a_body_arrives_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def let_time_pass() -> None:
        monkeypatch.setattr("app.access.key_cache.now", lambda: now() + 100)
        monkeypatch.setattr(keys, "now", lambda: now() + 100)

    api.middleware.app = Meanwhile(happen=let_time_pass)
    secret = api.make_key("admin", expires_at=now() + 50)
    assert api.send("POST", "/things", secret, chunks=[b"a", b"b"]).status == 401


def test_a_body_goes_on_while_the_database_is_away(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    def lose_database() -> None:
        api.checks.cache.clear()
        monkeypatch.setattr(keys, "find_caller", fail)

    api.middleware.app = Meanwhile(happen=lose_database)
    assert api.send("POST", "/archives", api.make_key("admin"), chunks=[b"a", b"b"]).status == 200


@pytest.mark.parametrize(("path", "status"), [("/things", 401), ("/archives", 200)])
def test_a_token_that_expires_while_a_body_arrives_ends_all_but_archives(api: Api, path: str, status: int) -> None:
    verified = [Caller("oidc:anna", "admin", valid_until=now() - 1)]

    async def verify(_: str) -> Caller | None:
        return verified.pop() if verified else None

    api.checks.tokens = SimpleNamespace(find_caller=verify)  # type: ignore[assignment]
    api.middleware.app = Meanwhile()
    assert api.send("POST", path, "eyJ.a.token", chunks=[b"a", b"b"]).status == status


def test_the_cache_listens_once_to_each_notifier(api: Api) -> None:
    secret = api.make_key()
    for _ in range(2):
        heard: list[str] = []
        listener = SimpleNamespace(listen=lambda topic, _, heard=heard: heard.append(topic))
        api.held.notifier = listener
        api.held = SimpleNamespace(**vars(api.held))
        assert [api.send("GET", "/things", secret).status for _ in range(2)] == [200, 200]
        assert heard == ["keys"]


@pytest.mark.parametrize(("poll_seconds", "cache_seconds"), [(0.2, 0.2), (60.0, 1.0)])
def test_a_revoked_key_is_known_for_one_second_at_most(
    lasting_sqlite: Resources, poll_seconds: float, cache_seconds: float
) -> None:
    settings = lasting_sqlite.settings.model_copy(update={"poll_seconds": poll_seconds})
    assert Api(lasting_sqlite, settings).checks.cache.seconds == cache_seconds


def test_a_database_that_is_away_is_answered_with_busy(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Caller:
        raise OperationalError("select", {}, Exception("gone"))

    monkeypatch.setattr(keys, "find_caller", fail)
    answer = api.send("GET", "/things", "lk_any")
    assert read_problem(answer) == (
        503,
        "Throttling",
        "the database is busy or cannot be reached; nothing of this request was stored",
    )
    assert answer.get_header("retry-after") == "1"


def test_a_known_key_is_used_on_while_the_database_is_away(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = api.make_key()
    api.checks.cache.seconds = 0.0
    assert api.send("GET", "/things", secret).status == 200

    def fail(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(keys, "find_caller", fail)
        assert api.send("GET", "/things", secret).status == 200
        assert api.send("GET", "/things", "lk_other").status == 503
        patch.setattr(time, "monotonic", lambda: 10.0**9)
        assert api.send("GET", "/things", secret).status == 503, "not for ever"
    with writing(api.resources.database) as session:
        session.execute(delete(Key))
    assert api.send("GET", "/things", secret).status == 401, "from the next lookup on"
    monkeypatch.setattr(keys, "find_caller", fail)
    assert api.send("GET", "/things", secret).status == 503, "it was refused since"


def test_a_known_key_is_used_on_only_until_others_reach_the_database(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPARISON_SECONDS", "GRACE_SECONDS", "CONFIRMING_SECONDS", "SIGN_SECONDS"):
        monkeypatch.setattr(reach, name, 0.0)
    api.held.reach, other = DatabaseReach(api.settings.home), DatabaseReach(api.settings.home)
    api.checks.cache.seconds = 0.0
    secret = api.make_key()
    assert api.send("GET", "/things", secret).status == 200

    def fail(*_: object) -> None:
        raise OperationalError("select", {}, Exception("gone"))

    monkeypatch.setattr(keys, "find_caller", fail)
    assert [api.send("GET", "/things", secret).status for _ in range(5)] == [200] * 5, "nobody reaches it"
    other.note_answer()
    assert [api.send("GET", "/things", secret).status for _ in range(2)] == [200, 503]


def test_a_known_key_is_not_used_while_others_may_revoke_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = api.make_key()
    assert api.send("GET", "/things", secret).status == 200
    api.held.reach = DatabaseReach(api.settings.home)
    api.held.reach.is_alone = True
    answer = api.send("GET", "/things", secret)
    assert (answer.status, read_problem(answer)[1]) == (503, "Throttling")
    assert "cannot be reached from this process" in read_problem(answer)[2]


@pytest.mark.usefixtures("stopped_clock")
def test_too_many_requests_of_a_key_or_an_address_have_to_wait(lasting_sqlite: Resources, api: Api) -> None:
    limits = {"max_key_requests_per_minute": 2, "max_address_requests_per_minute": 0, "max_wrong_keys_per_minute": 0}
    per_key = Api(lasting_sqlite, api.settings.model_copy(update=limits))
    first, second = per_key.make_key(), per_key.make_key()
    assert [per_key.send("GET", "/things", first).status for _ in range(3)] == [200, 200, 429]
    refused = per_key.send("GET", "/things", first)
    assert refused.get_header("retry-after") == "30"
    assert per_key.send("GET", "/things", second).status == 200
    limits |= {"max_key_requests_per_minute": 0, "max_address_requests_per_minute": 2}
    per_address = Api(lasting_sqlite, api.settings.model_copy(update=limits))
    clients = [("192.0.2.1", 1), ("192.0.2.1", 2), ("192.0.2.1", 3), ("192.0.2.2", 1)]
    answers = [per_address.send("GET", "/things", first, client=client).status for client in clients]
    assert answers == [200, 200, 429, 200]
    without_a_key = [per_address.send("GET", "/open", client=("192.0.2.3", n)).status for n in range(3)]
    assert without_a_key == [200, 200, 429]
    assert per_address.send("GET", "/nothing", client=("192.0.2.3", 1)).status == 429
    assert [per_address.send("GET", "/alive", client=clients[0]).status for _ in range(3)] == [200] * 3, "a probe"


@pytest.mark.usefixtures("stopped_clock")
def test_a_right_key_is_accepted_after_too_many_wrong_ones_of_its_address(lasting_sqlite: Resources, api: Api) -> None:
    limited = Api(lasting_sqlite, api.settings.model_copy(update={"max_wrong_keys_per_minute": 2}))
    secret = limited.make_key()
    assert limited.send("GET", "/things", secret).status == 200
    assert [limited.send("GET", "/things", f"lk_{n}").status for n in range(3)] == [401, 401, 429]
    assert limited.send("GET", "/things", "lk_1", client=("192.0.2.8", 1)).status == 401, "of another address"
    limited.checks.cache.clear()
    assert limited.send("GET", "/things", secret).status == 200


@pytest.mark.usefixtures("stopped_clock")
def test_a_revoked_key_is_a_wrong_one_like_others(lasting_sqlite: Resources, api: Api) -> None:
    limited = Api(lasting_sqlite, api.settings.model_copy(update={"max_wrong_keys_per_minute": 2}))
    secret = limited.make_key()
    assert limited.send("GET", "/things", secret).status == 200
    with writing(limited.resources.database) as session:
        session.execute(delete(Key))
    limited.checks.cache.clear()
    assert [limited.send("GET", "/things", secret).status for _ in range(4)] == [401, 401, 429, 429]


def test_only_requests_that_a_caller_makes_on_purpose_count_as_traffic(lasting_sqlite: Resources, api: Api) -> None:
    stamp = lasting_sqlite.settings.home / TIMESTAMP_FILE
    stamp.unlink(missing_ok=True)
    secret = api.make_key("operator")
    api.send("GET", "/things", secret)
    api.send("POST", "/things", "lk_wrong")
    assert not stamp.exists()
    api.send("POST", "/things", secret)
    assert stamp.exists()


PHOTO_LIMIT = 2 * 4 * 1001 + MULTIPART_OVERHEAD_BYTES
"""Two photos of 3,000 bytes in base64, which takes 4 bytes for every 3 or fewer, and what a form adds."""


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/things", 1000), ("/photos", PHOTO_LIMIT), ("/archives", 5000)],
    ids=["json", "photo", "archive"],
)
def test_a_body_may_have_the_bytes_of_its_kind_and_not_one_more(api: Api, path: str, limit: int) -> None:
    secret = api.make_key("operator")
    for headers in ([], [("content-length", str(limit))]):
        passed = api.send("POST", path, secret, headers=headers, chunks=[b"x" * (limit - 1), b"x"])
        assert (passed.status, passed.body) == (200, str(limit).encode())
    refusal = f"the body may have {limit:,} bytes; send less, or raise the limit in the settings"
    counted = api.send("POST", path, secret, chunks=[b"x" * limit, b"x"])
    assert read_problem(counted) == (413, "RequestTooLarge", refusal)
    declared = api.send("POST", path, secret, headers=[("content-length", str(limit + 1))], chunks=[b""])
    assert read_problem(declared) == (413, "RequestTooLarge", refusal)


def test_a_length_that_is_no_number_is_counted(api: Api) -> None:
    answer = api.send("POST", "/things", api.make_key("operator"), headers=[("content-length", "-1")], chunks=[b"x"])
    assert (answer.status, answer.body) == (200, b"1")


def test_the_refusal_replaces_what_the_application_makes_of_an_incomplete_body(
    lasting_sqlite: Resources, api: Api
) -> None:
    async def misunderstand(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await Inner()(scope, receive, send)
        except Exception:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"cut short"})

    answer = Api(lasting_sqlite, api.settings, misunderstand).send(
        "POST", "/things", api.make_key("operator"), chunks=[b"x" * 1001]
    )
    assert read_problem(answer)[:2] == (413, "RequestTooLarge")


def test_an_answer_that_has_started_is_not_replaced(lasting_sqlite: Resources, api: Api) -> None:
    sent: list[Message] = []

    async def answer_early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await receive()
        finally:
            sent.append({"type": "http.response.body", "body": b"early"})
            await send(sent[0])

    early = Api(lasting_sqlite, api.settings, answer_early)
    secret = early.make_key("operator")
    with pytest.raises(TooLarge):
        early.send("POST", "/things", secret, chunks=[b"x" * 1001])
    assert sent, "the rest of the answer was passed on"


def test_an_expired_key_is_refused(api: Api) -> None:
    secret = api.make_key(expires_at=now() + 60)
    with writing(api.resources.database) as session:
        session.scalars(select(Key)).one().expires_at = now()
    assert api.send("GET", "/things", secret).status == 401


@pytest.mark.parametrize(
    ("path", "counter", "status"),
    [("/things", "BODY_BYTES", 503), ("/photos", "FORM_BYTES", 503), ("/archives", "BODY_BYTES", 200)],
)
def test_bodies_that_are_held_whole_share_a_limit(
    lasting_sqlite: Resources, monkeypatch: pytest.MonkeyPatch, path: str, counter: str, status: int
) -> None:
    api = Api(lasting_sqlite, lasting_sqlite.settings)
    secret, held = api.make_key("operator"), HeldBytes(100_000)
    monkeypatch.setattr(held_bytes, counter, held)
    short, long = b"b" * FREE_BODY_BYTES, b"b" * 40_000
    with held.open_share() as others:
        others.add(50_000)
        assert api.send("POST", path, secret, chunks=[short, long]).body == b"105536"
        others.add(20_000)
        answer = api.send("POST", path, secret, chunks=[short, long])
        assert answer.status == status
        if status == 503:
            assert read_problem(answer)[1] == "Throttling"
            assert answer.get_header("retry-after") == "1"
        others.add(30_000)
        assert api.send("POST", path, secret, chunks=[short]).status == 200
    assert held.count == 0


@pytest.mark.parametrize(("path", "counter"), [("/photos", "BODY_BYTES"), ("/searches", "FORM_BYTES")])
def test_a_photo_with_an_idempotency_key_counts_as_held_whole(
    lasting_sqlite: Resources, monkeypatch: pytest.MonkeyPatch, path: str, counter: str
) -> None:
    """A search is carried out anew with its key, so its body is not held."""
    api = Api(lasting_sqlite, lasting_sqlite.settings)
    counts = {name: HeldBytes(10**6) for name in ("BODY_BYTES", "FORM_BYTES")}
    for name, held in counts.items():
        monkeypatch.setattr(held_bytes, name, held)
    while_read: dict[str, int] = {}

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        await Inner()(scope, receive, send)
        while_read.update({name: held.count for name, held in counts.items()})

    api.middleware.app = read
    headers = [("idempotency-key", "once")]
    body = [b"b" * FREE_BODY_BYTES, b"b" * 40_000]
    assert api.send("POST", path, api.make_key(), headers=headers, chunks=body).status == 200
    assert while_read == {"BODY_BYTES": 0, "FORM_BYTES": 0, counter: 40_000}
    assert [held.count for held in counts.values()] == [0, 0]


def test_what_has_arrived_of_a_refused_body_is_freed_at_once(lasting_sqlite: Resources, api: Api) -> None:
    held: list[weakref.ref[HeldBytes]] = []

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        arrived = HeldBytes(0)  # stands for the bytes
        held.append(weakref.ref(arrived))
        await Inner()(scope, receive, send)

    holding = Api(lasting_sqlite, api.settings, hold)
    secret = holding.make_key("operator")
    gc.disable()
    try:
        assert holding.send("POST", "/things", secret, chunks=[b"x" * 1001]).status == 413
        assert held[0]() is None
    finally:
        gc.enable()
