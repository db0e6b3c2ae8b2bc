"""How schemathesis sends a body of JSON lines. This module runs in the environment of schemathesis."""

import json
from typing import Any

import schemathesis

JSON_LINES = "application/x-ndjson"


@schemathesis.serializer(JSON_LINES)
def serialize_json_lines(context: Any, value: Any) -> dict[str, Any]:
    """Return the body of a request. The schema is that of a text; other values are sent as JSON."""
    return {"data": value if isinstance(value, bytes) else _to_text(value).encode(errors="surrogatepass")}


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
