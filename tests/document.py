"""Every answer that a test gets is held against the OpenAPI document: status, code, headers, body."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from app.config import Settings
from app.deps.headers import HEADERS
from app.deps.problems import MEDIA_TYPE, Problem
from app.document.api import DocumentedApi
from app.main import create_app

NOW_AND_THEN = {"Idempotent-Replayed"}
SMALL, OFTEN = 65_536, 5
"""Successes that are larger, or come later, are looked at no further: it would take longer than the tests."""


@lru_cache
def document() -> dict[str, Any]:
    """It depends on no setting."""
    return create_app(Settings()).openapi()


@lru_cache
def registry() -> Registry[Any]:
    return Registry().with_resource("urn:document", Resource(document(), DRAFT202012))


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    """What of a value the document's schema does not allow."""
    here = json.loads(json.dumps(schema).replace('"$ref": "#', '"$ref": "urn:document#'))
    checker = Draft202012Validator(here, registry=registry(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(value)]


class Watched:
    """An app. `strange`: what it answered otherwise than its document says."""

    def __init__(self, app: DocumentedApi) -> None:
        self.app = app
        self.strange: list[str] = []
        self.seen: Counter[tuple[str, str, int]] = Counter()
        document()  # made before threads look at it: FastAPI mutes warnings meanwhile, which no two threads can

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._path(scope) if scope["type"] == "http" else None
        if path is None:
            await self.app(scope, receive, send)
            return
        started: list[Message] = []
        body = bytearray()

        async def sending(message: Message) -> None:
            started.extend([message] if message["type"] == "http.response.start" else [])
            if len(body) <= SMALL:
                body.extend(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            for message in started:
                self._look(scope["method"], path, message["status"], Headers(raw=message["headers"]), bytes(body))

    def _path(self, scope: Scope) -> str | None:
        """As the document names it."""
        return next((r.path for r in self.app.documented if r.matches(scope)[0] == Match.FULL), None)

    def _look(self, method: str, path: str, status: int, headers: Headers, body: bytes) -> None:
        self.seen[method, path, status] += 1
        told = document()["paths"][path][method.lower()]["responses"].get(str(status))
        if told is None:
            self.strange.append(f"{method} {path} {status} is not listed")
        elif status >= 400 or self.seen[method, path, status] <= OFTEN:
            found = (*_headers(told, headers), *_body(told, headers, body))
            self.strange += [f"{method} {path} {status}: {fault}" for fault in found]


def _headers(told: dict[str, Any], headers: Headers) -> Iterable[str]:
    listed, sent = set(told["headers"]), {name for name in HEADERS if name in headers}
    yield from (f"the header {name} is listed and not sent" for name in listed - sent - NOW_AND_THEN)
    yield from (f"the header {name} is sent and not listed" for name in sent - listed)


def _body(told: dict[str, Any], headers: Headers, body: bytes) -> Iterable[str]:
    kind = headers.get("content-type", "").partition(";")[0]
    content = told.get("content", {})
    if kind not in content:
        yield from [f"{kind} is not listed"] if body else []
    elif kind == MEDIA_TYPE:
        code = Problem.model_validate_json(body).code
        yield from [] if code in content[kind]["examples"] else [f"the code {code} is not listed"]
    elif kind == "application/json" and len(body) <= SMALL:
        yield from faults(content[kind]["schema"], json.loads(body))
