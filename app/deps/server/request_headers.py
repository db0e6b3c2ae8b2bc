"""Read the headers of a request from its scope, without an object that holds them all."""

import random

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
    return limit_request_id(find_header(scope, b"x-request-id"))


def limit_request_id(sent: str) -> str:
    """Return the start of the id that a client sent, or a new id if that is empty."""
    return sent[:MAX_REQUEST_ID_CHARACTERS] or f"{random.getrandbits(64):016x}"
