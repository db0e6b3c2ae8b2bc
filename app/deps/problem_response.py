"""Answer a request with a problem (RFC 9457), and say when to repeat it if that may help."""

from collections.abc import Mapping

from fastapi.responses import JSONResponse
from starlette.types import Scope

from app.errors import describe_problem

MEDIA_TYPE = "application/problem+json"


def make_problem_response(scope: Scope, error: Exception, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer to a request that an error has ended.

    headers: of the answer, besides `Retry-After`, which it has if the error is retryable, and `WWW-Authenticate`
    """
    body = describe_problem(error, scope.get("state", {}).get("request_id", ""))
    retry = {"Retry-After": str(getattr(error, "retry_after_seconds", 1))} if body["retryable"] else {}
    key = {"WWW-Authenticate": "Bearer"} if body["status"] == 401 else {}
    return JSONResponse(body, body["status"], {**(headers or {}), **retry, **key}, media_type=MEDIA_TYPE)
