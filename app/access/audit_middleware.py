"""Write an entry of the audit log for each request to a route that declares an action, before it is answered."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config import Settings
from app.db.tables import new_ids, now
from app.deps.scopes import RouteScope
from app.deps.server.connections import format_address
from app.storage.audit_log.drafts import EntryDraft, check_collection
from app.storage.audit_log.notes import NOTE, AuditNote

FAILED_STATUS = 500
READER = "reader"
Entry = tuple[str, str, str | None, str | None, str | None]
"""The action, the id of the key, the address, the collection and the resource."""


class AuditRecorder:
    """Keeps entries for requests, by what AuthMiddleware and the route have left in their state."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def record(self, scopes: Sequence[Scope], note: AuditNote, status: int) -> None:
        """Keep an entry for each collection that each of these requests works on, or one without a collection."""
        entries = [entry for scope in scopes for entry in self._list_entries(scope, note)]
        if entries:
            ids, at = new_ids(len(entries)), now()
            drafts = [EntryDraft(id_, at, *entry, status) for id_, entry in zip(ids, entries, strict=True)]
            scopes[0]["state"]["audit_spool"].extend(drafts)

    def _list_entries(self, scope: Scope, note: AuditNote) -> Iterator[Entry]:
        state = scope["state"]
        requirements, caller = state.get("requirements", {}), state.get("caller")
        action = requirements.get("x-audit")
        if action is None or caller is None:
            return
        if requirements["x-role"] == READER and not self.settings.audit_searches:
            return
        params, client = state["path_params"], scope.get("client")
        address = format_address(client[0]) if client else None
        resource = note.resource or state["resources"].audit_chain.names.name_path(params)
        collections: list[str | None] = [*sorted(note.collections)] or [_find_collection(scope, requirements, params)]
        for collection in collections:
            yield action, caller.key_id, address, collection, resource


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
                self.recorder.record([scope], note, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_after_entry)
        finally:
            if not is_recorded:  # it failed, or the client has gone
                self.recorder.record([scope], note, FAILED_STATUS)


def _find_collection(scope: Scope, requirements: dict[str, str], params: dict[str, Any]) -> str | None:
    """Return the collection that the path or the query names."""
    if "collection" in params:
        return check_collection(params["collection"])
    if requirements["x-scope"] == RouteScope.COLLECTION:
        named = parse_qs(scope["query_string"].decode("latin-1")).get("collection", [None])
        return check_collection(named[0])
    return None
