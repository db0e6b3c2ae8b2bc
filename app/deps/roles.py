"""Which role a route needs: read by the middleware before a body is, and shown in the OpenAPI document."""

from typing import Any

READER: dict[str, Any] = {"x-role": "reader"}
OPERATOR: dict[str, Any] = {"x-role": "operator"}
ADMIN: dict[str, Any] = {"x-role": "admin"}
PHOTO = {"x-body": "photo"}
ARCHIVE = {"x-body": "archive"}
