"""An answer on its way out."""

from fastapi import Response
from pydantic_core import to_json

from app.search.schemas import Answer, Verdict


def answered(answer: Answer | Verdict) -> Response:
    """As JSON, written at once: thousands of matches need no second look, and no other thread."""
    headers = {"X-Model": answer["model"], "X-Index-Generation": answer["index_generation"]}
    return Response(to_json(answer), media_type="application/json", headers=headers)
