"""Describe the headers of answers for the OpenAPI document. Routes declare theirs with `describe_headers`."""

from typing import Any

HEADERS: dict[str, tuple[str, str | int]] = {
    "X-Request-Id": ("the id that the request sent or the service made; it is in the server's log", "4f1d2a0b9c8e7f65"),
    "X-Model": ("the model that answered", "0005f2c1a9e0b2"),
    "X-Index-Generation": (
        "the state of the index; every move of a pointer and every change of the collection changes it",
        "3.1042",
    ),
    "X-Change-Number": (
        "the number of a change of the collection; a search that sends it sees what the request or the job has done",
        1042,
    ),
    "ETag": ("the version of the deployment, for If-Match", '"3"'),
    "Location": ("the path of the job", "/v1/jobs/0006423bd5c1e7a91f2b3c4d5"),
    "X-Erasure": ("the path of the receipt", "/v1/erasures/0647a1e2b15c93d07f4ea86b"),
    "Retry-After": ("the number of seconds to wait before the next request", 1),
    "WWW-Authenticate": ("how to send a key", "Bearer"),
    "Idempotent-Replayed": ("true: this is the answer of an earlier request with this Idempotency-Key", "true"),
}
JSON_TYPES: dict[type, str] = {str: "string", int: "integer"}


def describe_headers(*names: str) -> dict[str, Any]:
    """Return the entry of one status in a route's `responses`. Raises KeyError for an unknown header."""
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names if HEADERS[name]}}


def build_components() -> dict[str, Any]:
    """Return the headers for the components of the document."""
    return {
        name: {"description": description, "schema": {"type": JSON_TYPES[type(example)], "examples": [example]}}
        for name, (description, example) in HEADERS.items()
    }
