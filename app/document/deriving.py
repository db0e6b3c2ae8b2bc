"""The problems and headers of an operation, derived from what it takes and needs."""

from collections.abc import Iterable
from typing import Any

from app.deps import headers
from app.deps.problems import KNOWN, MEDIA_TYPE, Refusal
from app.document.about import SUCCESS

KEYED: tuple[Refusal, ...] = (
    (401, "AccessDenied"),
    (403, "AccessDenied"),
    (500, "InternalServerError"),
    (503, "Throttling"),
)
POSTED: tuple[Refusal, ...] = (
    (409, "RequestInProgress"),
    (422, "InvalidParameter"),
    (422, "IdempotencyKeyReused"),
)
PHOTO: tuple[Refusal, ...] = (
    (409, "NotInstalled"),
    (422, "InvalidImageFormat"),
    (422, "ImageTooLarge"),
    (422, "InvalidRequest"),
    (503, "ModelUnavailable"),
)
"""Its faces are described by the recogniser that serves, which may be missing or damaged."""
ARCHIVE: tuple[Refusal, ...] = ((413, "ArchiveTooLarge"), (422, "InvalidArchive"), (422, "InvalidRequest"))

BY_STATUS = {"202": ("Location", "Retry-After"), "401": ("WWW-Authenticate",), "503": ("Retry-After",)}


def refusals(path: str, method: str, operation: dict[str, Any]) -> set[Refusal]:
    """What the operation says of itself, and what follows from what it takes and needs."""
    names = {p["name"] for p in operation.get("parameters", ())}
    keyed, body, kind = "x-role" in operation, "requestBody" in operation, operation.get("x-body")
    made = path.rpartition("/{")[0] if method == "put" and path.endswith("}") else path  # a PUT makes what it names
    rules: tuple[tuple[bool, Iterable[Refusal]], ...] = (
        (keyed, KEYED),
        (keyed and method == "post", POSTED),
        ("{" in made, [(404, "ResourceNotFound")]),
        (bool(names) or body, [(422, "InvalidParameter")]),
        ("next_token" in names, [(422, "InvalidPaginationToken")]),
        ("if-match" in names, [(412, "PreconditionFailed")]),
        (body, [(413, "RequestTooLarge")]),
        (body and kind != "archive", [(400, "InvalidRequest")]),  # an archive is not parsed by the framework
        (kind == "photo", PHOTO),
        (kind == "archive", ARCHIVE),
        (True, [(status, code) for status, code in operation.pop("x-problems", ())]),
    )
    return {refusal for holds, theirs in rules if holds for refusal in theirs}


def add_problems(responses: dict[str, Any], pairs: Iterable[Refusal]) -> None:
    """As application/problem+json, with an example of each code."""
    responses.pop("422", None)  # FastAPI's own, which is never answered
    for status, code in sorted(pairs):
        response = responses.setdefault(str(status), {"description": ""})
        response["description"] += f"\n- `{code}`: {KNOWN[status, code][0]}"
        content = response.setdefault("content", {}).setdefault(
            MEDIA_TYPE, {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
        )
        content["examples"][code] = {"$ref": f"#/components/examples/{status}.{code}"}


def add_headers(method: str, responses: dict[str, Any]) -> None:
    """What every answer carries, and what those of its status do; and words for a success that has none."""
    for status, response in responses.items():
        replayed = ["Idempotent-Replayed"] if method == "post" and status < "300" else []
        names = ["X-Request-Id", *BY_STATUS.get(status, ()), *replayed]
        response["headers"] = headers.telling(*names)["headers"] | response.get("headers", {})
        if response["description"] == "Successful Response":
            response["description"] = SUCCESS[status]
