"""Read the headers of a request from its scope, without an object that holds them all."""

import os

from starlette.types import Scope

MAX_REQUEST_ID_CHARACTERS = 100


def find_header(scope: Scope, name: bytes) -> str:
    """Return the first header with this name, in lower case; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")  # type: ignore[no-any-return]
    return ""


def choose_request_id(scope: Scope) -> str:
    """Return the id that the client gave its request, or a new one."""
    return find_header(scope, b"x-request-id")[:MAX_REQUEST_ID_CHARACTERS] or os.urandom(8).hex()
