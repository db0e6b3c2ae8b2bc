"""Derive the problems and headers of an operation from its path, method, parameters, body and role."""

from collections.abc import Iterable
from typing import Any

from app.deps import headers
from app.deps.problems import KNOWN_PROBLEMS, MEDIA_TYPE, Refusal
from app.deps.scopes import RouteScope
from app.document.about import SUCCESS_DESCRIPTIONS

PROBLEMS_WITH_KEY: tuple[Refusal, ...] = (
    (401, "AccessDenied"),
    (403, "AccessDenied"),
    (429, "TooManyRequests"),
    (500, "InternalServerError"),
    (503, "Throttling"),
)
PROBLEMS_OF_POST: tuple[Refusal, ...] = (
    (409, "AnswerErased"),
    (409, "RequestInProgress"),
    (422, "InvalidParameter"),
    (422, "IdempotencyKeyReused"),
)
PROBLEMS_WITH_PHOTO: tuple[Refusal, ...] = (
    (409, "NotInstalled"),
    (422, "InvalidImageFormat"),
    (422, "ImageTooLarge"),
    (422, "InvalidRequest"),
    (422, "PhotoFailed"),
    (503, "ModelUnavailable"),
)
"""The recogniser that describes the faces of a photo may be missing or damaged."""
PROBLEMS_WITH_ARCHIVE: tuple[Refusal, ...] = (
    (422, "InvalidArchive"),
    (422, "InvalidRequest"),
)
UNPARSED_BODIES = ("archive", "lines")
"""What the framework does not parse."""

HEADERS_BY_STATUS = {
    "202": ("Location", "Retry-After"),
    "401": ("WWW-Authenticate",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}


def derive_problems(path: str, method: str, operation: dict[str, Any]) -> set[Refusal]:
    """Return the problems that the operation declares, and those that follow from its path, method and parameters.

    Removes the declaration `x-problems` from the operation.
    """
    names = {p["name"] for p in operation.get("parameters", ())}
    is_repeatable = method == "post" and "x-read" not in operation
    keyed, body, kind = "x-role" in operation, "requestBody" in operation, operation.get("x-body")
    creates = method == "put" and path.endswith("}")
    existing = path.rpartition("/{")[0] if creates else path  # what the path names and must exist
    rules: tuple[tuple[bool, Iterable[Refusal]], ...] = (
        (keyed, PROBLEMS_WITH_KEY),
        (keyed and is_repeatable, PROBLEMS_OF_POST),
        ("{" in existing, [(404, "ResourceNotFound")]),
        (bool(names) or body, [(422, "InvalidParameter")]),
        ("next_token" in names, [(422, "InvalidPaginationToken")]),
        ("if-match" in names, [(412, "PreconditionFailed")]),
        (body, [(413, "RequestTooLarge")]),
        (body and kind not in UNPARSED_BODIES, [(400, "InvalidRequest")]),
        (kind == "lines", [(422, "InvalidRequest")]),
        (kind == "photo", PROBLEMS_WITH_PHOTO),
        (kind == "archive", PROBLEMS_WITH_ARCHIVE),
        (True, [(status, code) for status, code in operation.pop("x-problems", ())]),
    )
    return {problem for applies, problems in rules if applies for problem in problems}


def add_problems(responses: dict[str, Any], pairs: Iterable[Refusal]) -> None:
    """Add problems to the responses of an operation, with an example of each code."""
    responses.pop("422", None)  # the one that FastAPI adds, which the service never sends
    for status, code in sorted(pairs):
        response = responses.setdefault(str(status), {"description": ""})
        response["description"] += f"\n- `{code}`: {KNOWN_PROBLEMS[status, code][0]}"
        content = response.setdefault("content", {}).setdefault(
            MEDIA_TYPE, {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
        )
        content["examples"][code] = {"$ref": f"#/components/examples/{status}.{code}"}


def may_change_faces(method: str, operation: dict[str, Any]) -> bool:
    """Return whether an operation may change what searches of a collection find."""
    is_scoped = operation.get("x-scope") == RouteScope.COLLECTION or operation.get("x-audit", "").startswith("label.")
    return method != "get" and "x-read" not in operation and is_scoped


def add_headers(responses: dict[str, Any], *, is_stored: bool, changes: bool) -> None:
    """Add the headers of every answer and those of its status, and a description if a success has none.

    is_stored: whether the answer is stored for the Idempotency-Key of its request
    changes: whether its request may change what searches of a collection find
    """
    for status, response in responses.items():
        replayed = ["Idempotent-Replayed"] if is_stored and status < "300" else []
        changed = ["X-Change-Number"] if changes and status < "300" else []
        names = ["X-Request-Id", *HEADERS_BY_STATUS.get(status, ()), *replayed, *changed]
        response["headers"] = headers.describe_headers(*names)["headers"] | response.get("headers", {})
        if response["description"] == "Successful Response":
            response["description"] = SUCCESS_DESCRIPTIONS[status]
