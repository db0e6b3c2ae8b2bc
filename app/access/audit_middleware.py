"""Write an entry of the audit log for each request to a route that declares an action, before it is answered."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config import Settings
from app.db.tables import new_ids, now
from app.deps.caller import Caller
from app.deps.scopes import RouteScope
from app.deps.server.connections import format_address
from app.storage.audit_log.drafts import EntryDraft, check_collection
from app.storage.audit_log.notes import NOTE, AuditNote

FAILED_STATUS = 500
READER = "reader"


class _Audited(NamedTuple):
    """What an entry says of a request, apart from its time and status."""

    action: str
    key_id: str
    address: str | None
    collection: str | None
    resource: str | None = None


class AuditRecorder:
    """Keeps entries for requests to routes that declare an action."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def record(self, scope: Scope, note: AuditNote, status: int) -> None:
        """Keep an entry for each collection that a request works on, or one without a collection.

        They are made by what AuthMiddleware and the route have left in its state.
        """
        state = scope["state"]
        requirements, caller = state.get("requirements", {}), state.get("caller")
        if caller is None or not self._is_audited(requirements):
            return
        params = state["path_params"]
        resource = note.resource or state["resources"].audit_chain.names.name_path(params)
        collections: list[str | None] = [*sorted(note.collections)] or [_find_collection(scope, requirements, params)]
        of_key = requirements["x-audit"], caller.key_id, _read_address(scope)
        _keep(scope, [_Audited(*of_key, collection, resource) for collection in collections], status)

    def record_together(
        self, requirements: Mapping[str, Any], requests: Sequence[tuple[Scope, Caller, str]], status: int
    ) -> None:
        """Keep an entry for each of these requests to one route of a collection, by one write.

        requests: each with its caller and its collection, which is all that their paths name
        """
        if self._is_audited(requirements):
            action = requirements["x-audit"]
            audited = [
                _Audited(action, caller.key_id, _read_address(scope), check_collection(collection))
                for scope, caller, collection in requests
            ]
            _keep(requests[0][0], audited, status)

    def _is_audited(self, requirements: Mapping[str, Any]) -> bool:
        if "x-audit" not in requirements:
            return False
        return self.settings.audit_searches or requirements["x-role"] != READER


class AuditMiddleware:
    """Stands outside of AuthMiddleware, so that what a key may not do is recorded too. Requests without a valid key are
    not recorded here: they are logged and counted."""

    def __init__(self, app: ASGIApp, recorder: AuditRecorder) -> None:
        self.app, self.recorder = app, recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})[NOTE] = note = AuditNote()
        is_recorded = False

        async def send_after_entry(message: Message) -> None:
            nonlocal is_recorded
            if message["type"] == "http.response.start" and not is_recorded:
                is_recorded = True
                self.recorder.record(scope, note, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_after_entry)
        finally:
            if not is_recorded:  # it failed, or the client has gone
                self.recorder.record(scope, note, FAILED_STATUS)


def _keep(scope: Scope, audited: Sequence[_Audited], status: int) -> None:
    """Keep entries of what happens now. scope: of one of the requests"""
    ids, at = new_ids(len(audited)), now()
    drafts = [EntryDraft(id_, at, *of_request, status) for id_, of_request in zip(ids, audited, strict=True)]
    scope["state"]["audit_spool"].extend(drafts)


def _read_address(scope: Scope) -> str | None:
    client = scope.get("client")
    return format_address(client[0]) if client else None


def _find_collection(scope: Scope, requirements: dict[str, str], params: dict[str, Any]) -> str | None:
    """Return the collection that the path or the query names; of several in the query, the last, as routes read it."""
    if "collection" in params:
        return check_collection(params["collection"])
    if requirements["x-scope"] == RouteScope.COLLECTION:
        named = parse_qs(scope["query_string"].decode("latin-1")).get("collection", [None])
        return check_collection(named[-1])
    return None
