"""The headers of answers, each said once; routes name those that are special to them with `telling`."""

from typing import Any

HEADERS: dict[str, tuple[str, str | int]] = {
    "X-Request-Id": ("as the request gave it, else made here; the server's log has it", "4f1d2a0b9c8e7f65"),
    "X-Model": ("the model that answered", "0005f2c1a9e0b2"),
    "X-Index-Generation": ("another after each move of a pointer and each change of the collection", "3.1042"),
    "ETag": ("the version of the deployment, for If-Match", '"3"'),
    "Location": ("the job, as a path", "/v1/jobs/0006423bd5c1e7a91f2b3c4d5"),
    "Retry-After": ("seconds after which it is worth to look or to try again", 1),
    "WWW-Authenticate": ("how a key is sent", "Bearer"),
    "Idempotent-Replayed": ("true where an earlier request with this Idempotency-Key was answered so", "true"),
}
KINDS: dict[type, str] = {str: "string", int: "integer"}


def telling(*names: str) -> dict[str, Any]:
    """For one status of a route's `responses`. Raises KeyError for an unknown header."""
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names if HEADERS[name]}}


def components() -> dict[str, Any]:
    """For the document's components."""
    return {
        name: {"description": description, "schema": {"type": KINDS[type(example)], "examples": [example]}}
        for name, (description, example) in HEADERS.items()
    }
