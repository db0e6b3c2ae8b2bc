"""The entries of a route's `openapi_extra` that state its role and the kind of its body.

AuthMiddleware reads them before it reads the body.
"""

from typing import Any

READER: dict[str, Any] = {"x-role": "reader"}
OPERATOR: dict[str, Any] = {"x-role": "operator"}
ADMIN: dict[str, Any] = {"x-role": "admin"}
READ: dict[str, Any] = {"x-read": True}
"""A POST that changes nothing: its answer, which may name people, is not stored for its Idempotency-Key."""
PHOTO = {"x-body": "photo"}
ARCHIVE = {"x-body": "archive"}
LARGE_JSON = {"x-large-json": True}
"""A JSON body that may have as many bytes as the setting `max_json_bytes` allows; others have a fixed limit too."""
