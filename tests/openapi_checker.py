"""Check every answer that a test receives against the OpenAPI document: status, problem code, headers and body."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
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

JSON = "application/json"
OPTIONAL_HEADERS = {"Idempotent-Replayed", "X-Change-Number"}
MAX_CHECKED_BYTES = 65_536
"""The body of a larger success is not checked: that would take longer than the tests themselves."""
MAX_CHECKED_SUCCESSES = 5
"""How many successes of an operation one checker checks, for the same reason. It checks every error."""


@cache
def openapi_document() -> dict[str, Any]:
    """The document of the API, which is the same under all settings."""
    return create_app(Settings()).openapi()


@cache
def schema_registry() -> Registry[Any]:
    """The registry in which references to `urn:document` resolve."""
    return Registry().with_resource("urn:document", Resource(openapi_document(), DRAFT202012))


def build_validator(schema: dict[str, Any]) -> Draft202012Validator:
    """A validator for a schema of the document, whose references are relative to the document."""
    absolute = json.loads(json.dumps(schema).replace('"$ref": "#', '"$ref": "urn:document#'))
    return Draft202012Validator(
        absolute, registry=schema_registry(), format_checker=Draft202012Validator.FORMAT_CHECKER
    )


@cache
def response_validator(path: str, method: str, status: int) -> Draft202012Validator:
    """The validator for the JSON body of a response, built once for each path, method and status."""
    return build_validator(find_response(path, method, status)["content"][JSON]["schema"])


def find_response(path: str, method: str, status: int) -> Any:
    """The document's response object, or None if the operation does not list this status. method: lower case."""
    return openapi_document()["paths"][path][method]["responses"].get(str(status))


def list_violations(validator: Draft202012Validator, value: Any) -> list[str]:
    """List where and how a value violates the schema."""
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


class OpenApiChecker:
    """An ASGI app that passes every request on and collects in `violations` how the answers break the document."""

    def __init__(self, app: DocumentedApi) -> None:
        self.app = app
        self.violations: list[str] = []
        self.answer_counts: Counter[tuple[str, str, int]] = Counter()
        self._paths: dict[tuple[str, str, str], str | None] = {}  # method, path, root path -> template
        openapi_document()  # built before threads need it: FastAPI changes the warning filters, which all threads share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._find_path(scope) if scope["type"] == "http" else None
        if path is None:
            await self.app(scope, receive, send)
            return
        started: list[Message] = []
        body = bytearray()

        async def record_and_send(message: Message) -> None:
            started.extend([message] if message["type"] == "http.response.start" else [])
            if len(body) <= MAX_CHECKED_BYTES:
                body.extend(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, record_and_send)
        finally:
            for message in started:
                headers = Headers(raw=message["headers"])
                self._check(scope["method"], path, message["status"], headers, bytes(body))

    def _find_path(self, scope: Scope) -> str | None:
        """The path template that the document has for this request, such as `/v1/collections/{collection}`."""
        key = scope["method"], scope["path"], scope.get("root_path", "")
        if key not in self._paths:
            matching = (r.path for r in self.app.documented if r.matches(scope)[0] == Match.FULL)
            self._paths[key] = next(matching, None)
        return self._paths[key]

    def _check(self, method: str, path: str, status: int, headers: Headers, body: bytes) -> None:
        self.answer_counts[method, path, status] += 1
        response = find_response(path, method.lower(), status)
        if response is None and status != 405:  # that is no answer of the operation
            self.violations.append(f"{method} {path} {status} is not listed")
        elif response is not None and (
            status >= 400 or self.answer_counts[method, path, status] <= MAX_CHECKED_SUCCESSES
        ):
            messages = [*_check_headers(response, headers)]
            messages += _check_body(response, headers, body)
            if _is_json(response, headers) and len(body) <= MAX_CHECKED_BYTES:
                messages += list_violations(response_validator(path, method.lower(), status), json.loads(body))
            self.violations += [f"{method} {path} {status}: {message}" for message in messages]


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0]


def _is_json(response: dict[str, Any], headers: Headers) -> bool:
    """Whether the answer is JSON and the document says so."""
    return _media_type(headers) == JSON and JSON in response.get("content", {})


def _check_headers(response: dict[str, Any], headers: Headers) -> Iterable[str]:
    listed, sent = set(response["headers"]), {name for name in HEADERS if name in headers}
    yield from (f"the header {name} is listed and not sent" for name in listed - sent - OPTIONAL_HEADERS)
    yield from (f"the header {name} is sent and not listed" for name in sent - listed)


def _check_body(response: dict[str, Any], headers: Headers, body: bytes) -> Iterable[str]:
    """List violations of the media type and, for a problem, of its code."""
    media_type, content = _media_type(headers), response.get("content", {})
    if media_type not in content:
        yield from [f"{media_type} is not listed"] if body else []
    elif media_type == MEDIA_TYPE:
        code = Problem.model_validate_json(body).code
        yield from [] if code in content[media_type]["examples"] else [f"the code {code} is not listed"]
