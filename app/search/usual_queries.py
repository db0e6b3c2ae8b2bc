"""Parse the query strings that most searches have, and remember what they said.

FastAPI looks at each parameter of a route at every request, which takes as long as describing a face.
"""

from functools import lru_cache
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError

from app.search.params import QuerySearchParams

MAX_CACHED_QUERIES, MAX_CACHED_QUERY_BYTES = 256, 512
USUAL_PARAMETERS = {"limit", "fpir", "threshold", "fmr", "task", "group_by", "source", "face_selection", "aligned"}

Params = TypeVar("Params", bound=QuerySearchParams)


def parse_usual(query: bytes, shape: type[Params]) -> Params | None:
    """Return the parameters in a query string; None for those that are rarely sent, and for wrong ones."""
    if len(query) > MAX_CACHED_QUERY_BYTES:
        return None
    params = _parse(query, shape)
    return params if isinstance(params, shape) else None


@lru_cache(MAX_CACHED_QUERIES)
def _parse(query: bytes, shape: type[QuerySearchParams]) -> QuerySearchParams | None:
    if query.count(b"&") >= len(USUAL_PARAMETERS):
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    values = dict(pairs)
    known = USUAL_PARAMETERS & shape.model_fields.keys()
    if len(values) < len(pairs) or not values.keys() <= known or not all(values.values()):
        return None
    try:
        return shape.model_validate(values)
    except ValidationError:
        return None
