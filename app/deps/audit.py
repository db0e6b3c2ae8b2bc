"""The name under which the requests of a route are audited: an entry of its `openapi_extra`, like its role.

Every route that is no plain read has one; the application does not start otherwise. app/access/audit_middleware.py
writes the entries. What readers may do, such as searches, is audited only if the setting `audit_searches` is on.
"""

import re
from collections.abc import Iterable
from typing import Any

from fastapi.routing import APIRoute

ACTION = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z]+(-[a-z]+)*")
PLAIN_READS = {"GET", "HEAD", "OPTIONS"}


class UndeclaredAudit(Exception):
    """A route that may change something does not say what it is audited as."""


def audit_as(action: str) -> dict[str, Any]:
    """Return the entry of `openapi_extra`. action: `noun.verb`, such as `face.delete`"""
    if not ACTION.fullmatch(action):
        raise ValueError(f"{action!r} is not of the form noun.verb")
    return {"x-audit": action}


def check_audited(routes: Iterable[Any]) -> None:
    """Raises UndeclaredAudit, naming the first route that is no plain read and has no action."""
    for route in routes:
        if not isinstance(route, APIRoute):
            continue
        methods = set(route.methods or ())
        if methods - PLAIN_READS and "x-audit" not in (route.openapi_extra or {}):
            raise UndeclaredAudit(
                f"{', '.join(sorted(methods))} {route.path} does not say what it is audited as: see app/deps/audit.py"
            )
