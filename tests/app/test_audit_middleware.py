"""Which requests AuditMiddleware records, and what an entry holds. No server runs."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from app.access import audit_middleware
from app.access.audit_middleware import AuditMiddleware, AuditRecorder
from app.config import Settings
from app.deps.caller import Caller
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.notes import NOTE
from tests.asgi import Answer, call

NOW = 1_700_000_000.0
DELETE = {"x-role": "operator", "x-scope": "collection", "x-audit": "face.delete"}
SEARCH = {"x-role": "reader", "x-scope": "collection", "x-audit": "search"}


@dataclass
class Application:
    """What AuthMiddleware and the route make of a request: they leave these values in its state.

    notes: (collections, resource) that the route notes; status: None if it fails before it answers
    """

    requirements: dict[str, str] | None = field(default_factory=lambda: DELETE)
    params: dict[str, Any] = field(default_factory=lambda: {"collection": "staff", "face_id": "f1"})
    caller: Caller | None = field(default_factory=lambda: Caller("k1", "operator"))
    notes: tuple[set[str], str | None] = (set(), None)
    status: int | None = 204
    recorded_before_answer: int = -1
    passed_on: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            self.passed_on = (scope, receive, send)
            return
        state = scope["state"]
        if self.requirements is not None:
            state |= {"requirements": self.requirements, "path_params": self.params}
        if self.caller is not None:
            state["caller"] = self.caller
        state[NOTE].collections |= self.notes[0]
        state[NOTE].resource = self.notes[1]
        if self.status is None:
            raise RuntimeError("it failed")
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        self.recorded_before_answer = len(state["audit_spool"])
        assert (await receive())["type"] == "http.request"
        for part in (b"some", b" more"):
            await send({"type": "http.response.body", "body": part, "more_body": part == b"some"})


@pytest.fixture(autouse=True)
def _stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are made at one time and have numbers as ids."""
    monkeypatch.setattr(audit_middleware, "now", lambda: NOW)
    numbers = iter(range(100))
    monkeypatch.setattr(audit_middleware, "new_ids", lambda count: [f"e{next(numbers)}" for _ in range(count)])


def send(application: Application, *, audit_searches: bool = True, **request: Any) -> tuple[list[EntryDraft], Answer]:
    """Return the entries that a request makes, and its answer."""
    names = SimpleNamespace(name_path=lambda params: f"path:{sorted(params)}")
    spool: list[EntryDraft] = []
    state = {"resources": SimpleNamespace(audit_chain=SimpleNamespace(names=names)), "audit_spool": spool}
    audited = AuditMiddleware(application, AuditRecorder(Settings(audit_searches=audit_searches)))
    answer = Answer()
    try:
        answer = call(audited, "DELETE", "/any", state=state, **request)
    except RuntimeError:
        assert application.status is None
    return spool, answer


def test_an_entry_says_who_did_what_when_where_and_with_which_answer() -> None:
    application = Application()
    [entry], answer = send(application)
    path = "path:['collection', 'face_id']"
    assert entry == EntryDraft("e0", NOW, "face.delete", "k1", "192.0.2.7", "staff", path, 204)
    assert (answer.status, answer.body) == (204, b"some more")
    assert application.recorded_before_answer == 1


def test_a_request_that_fails_is_recorded_as_a_failure() -> None:
    [entry], _ = send(Application(status=None))
    assert entry.status == 500


@pytest.mark.parametrize(
    "application",
    [
        Application(requirements=None),
        Application(requirements={"x-role": "operator", "x-scope": "collection"}),
        Application(caller=None),
    ],
    ids=["no route", "no action", "no key"],
)
def test_what_declares_no_action_or_has_no_key_is_not_recorded(application: Application) -> None:
    entries, answer = send(application)
    assert (entries, answer.status) == ([], 204)


def test_searches_are_recorded_if_the_setting_says_so_and_changes_always() -> None:
    assert len(send(Application(requirements=SEARCH))[0]) == 1
    assert send(Application(requirements=SEARCH), audit_searches=False)[0] == []
    assert len(send(Application(), audit_searches=False)[0]) == 1


def test_each_collection_that_the_route_notes_gets_an_entry_of_its_own() -> None:
    entries, _ = send(Application(notes=({"b", "a"}, "key:k2")))
    assert [(entry.id, entry.collection, entry.resource) for entry in entries] == [
        ("e0", "a", "key:k2"), ("e1", "b", "key:k2"),
    ]  # fmt: skip


def test_an_address_may_be_missing_and_is_never_a_text_of_the_client() -> None:
    assert send(Application(), client=None)[0][0].address is None
    assert send(Application(), client=("evil key_id=forged", 1))[0][0].address is None
    assert send(Application(), client=("2001:db8::1", 1))[0][0].address == "2001:db8::1"


@pytest.mark.parametrize(
    ("params", "scope", "query", "collection"),
    [
        ({"collection": "staff"}, "collection", "collection=other", "staff"),
        ({"collection": "no id!"}, "collection", "", None),
        ({}, "collection", "collection=staff", "staff"),
        ({}, "collection", "limit=5&collection=staff&collection=other", "other"),  # routes take the last too
        ({}, "collection", "collection=no%20id", None),
        ({}, "collection", "", None),
        ({}, "rows", "collection=staff", None),
        ({"collection": "staff"}, "new-collection", "", "staff"),
    ],
)
def test_the_collection_is_the_one_of_the_path_or_else_of_the_query(
    params: dict[str, str], scope: str, query: str, collection: str | None
) -> None:
    [entry], _ = send(Application(requirements=DELETE | {"x-scope": scope}, params=params), query=query)
    assert entry.collection == collection


def test_what_is_no_request_is_passed_on_without_a_note() -> None:
    scope, application = {"type": "lifespan"}, Application()
    asyncio.run(AuditMiddleware(application, AuditRecorder(Settings()))(scope, "receive", "send"))  # type: ignore[arg-type]
    assert application.passed_on == ({"type": "lifespan"}, "receive", "send")


def test_a_request_may_come_without_a_state() -> None:
    scope: Scope = {"type": "http"}

    async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
        return

    asyncio.run(AuditMiddleware(answer_nothing, AuditRecorder(Settings()))(scope, None, None))  # type: ignore[arg-type]
    assert list(scope["state"]) == [NOTE]
