"""The answers that the server itself sends, before or in place of the application's."""

import json
import secrets
from collections.abc import Iterable
from http import HTTPStatus

from app.deps.server.security_headers import SECURITY_HEADERS
from app.errors import AppError, describe_problem

Headers = Iterable[tuple[bytes, bytes]]


def render_refusal(error: AppError, default_headers: Headers) -> bytes:
    """Return the bytes of an answer that ends its connection: a problem, as the application would answer it."""
    request_id = secrets.token_hex(8)
    body = json.dumps(describe_problem(error, request_id)).encode()
    headers = [
        *default_headers,
        *SECURITY_HEADERS,
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    headers += [(b"retry-after", b"1")] if error.retryable else []
    first_line = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()
    return b"\r\n".join([first_line, *(name + b": " + value for name, value in headers), b"", body])
