"""Search 1:N by vector: on the event loop and from memory alone where that is enough, else in a thread."""

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.background import BackgroundTask
from starlette.types import Scope

from app.db.immediate import DatabaseNeeded
from app.deps import EngineDep
from app.deps.admission.work import Work
from app.deps.audit import audit_as
from app.deps.roles import LARGE_JSON
from app.deps.server.change_number import ChangeNumber, read_change_number
from app.deps.server.immediate_answers import ImmediateAnswer, ImmediateRoute
from app.errors import AppError
from app.search import service
from app.search.context import SearchContext, open_context
from app.search.params import MAX_VECTOR_NUMBERS, MAX_VECTOR_VALUE, QuerySearchParams, VectorIn
from app.search.response import describe_model, json_response, serialise
from app.search.routes import BY_FACE, SEARCH_HEADERS, CollectionId
from app.search.schemas import SearchOut
from ml.errors import LikenessError

MAX_CACHED_QUERIES, MAX_CACHED_QUERY_BYTES = 256, 512
SHORT_PARAMETERS = {"limit", "fpir", "threshold", "fmr", "task", "group_by", "source"}
JSON = "application/json"
NUMBERS = {int, float}

BY_VECTOR = BY_FACE | LARGE_JSON | audit_as("search.vector")
PREFIX, SUFFIX = "/v1/collections/", "/search:by-embedding"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class MemoryFirstRoute(APIRoute):
    """Answers a short search from memory before the framework looks at it, which would take as long again.

    Most of them never come here: see `ImmediateAnswersMiddleware`. Everything else, wrong requests included, goes on to
    the route's function in a thread.
    """

    def get_route_handler(self) -> Handler:
        """Return what handles a request."""
        handle = super().get_route_handler()

        async def handle_immediately(request: Request) -> Response:
            if request.headers.get("content-type") != JSON:
                return await handle(request)
            collection = request.path_params["collection"]
            answer = answer_from_memory(request.scope, collection, await request.body())
            if answer is None:
                return await handle(request)
            response = Response(answer.body, media_type=JSON, background=answer.after and BackgroundTask(answer.after))
            response.raw_headers[:0] = answer.headers
            return response

        return handle_immediately


router = APIRouter(prefix="/v1", tags=["search"], route_class=MemoryFirstRoute)


@router.post(
    "/collections/{collection}/search:by-embedding",
    summary="Search with a vector",
    response_model=SearchOut,
    openapi_extra=BY_VECTOR,
    responses=SEARCH_HEADERS,
)
def search_by_vector(
    collection: CollectionId,
    body: VectorIn,
    params: Annotated[QuerySearchParams, Query()],
    engine: EngineDep,
    change: ChangeNumber = None,
) -> Response:
    """Returns the enrolled people nearest to a vector in the space of the model's embeddings. In a collection of
    imported vectors it is a vector like these, whatever model serves.

    A vector of another length is answered with 422 and the number of values that are needed.
    """
    with open_context(engine, change) as context:
        return json_response(context, service.search_by_vector(context, collection, body.vector, params))


def answer_from_memory(scope: Scope, collection: str, body: bytes) -> ImmediateAnswer | None:
    """Answer a search from memory. Returns None for one that is long, wrong, or needs the database."""
    query = scope["query_string"]
    params = _parse_short(query) if len(query) <= MAX_CACHED_QUERY_BYTES else None
    vector = None if params is None else _parse_vector(body)
    if params is None or vector is None:
        return None
    try:
        context = SearchContext(scope["state"]["engine"], None, read_change_number(scope))
        found = service.search_by_vector(context, collection, vector, params)
    except (DatabaseNeeded, AppError, LikenessError):
        return None
    headers = [(name.lower().encode(), value.encode()) for name, value in describe_model(found).items()]
    return ImmediateAnswer(headers, serialise(found), context.finish if context.after_answer else None)


def _parse_vector(body: bytes) -> list[float] | None:
    """Return the numbers of a body that `VectorIn` would accept; None for most others."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    vector = parsed.get("vector") if isinstance(parsed, dict) and len(parsed) == 1 else None
    if not isinstance(vector, list) or not 0 < len(vector) <= MAX_VECTOR_NUMBERS:
        return None
    is_valid = set(map(type, vector)) <= NUMBERS and -MAX_VECTOR_VALUE <= min(vector) <= max(vector) <= MAX_VECTOR_VALUE
    return vector if is_valid else None


@lru_cache(MAX_CACHED_QUERIES)
def _parse_short(query: bytes) -> QuerySearchParams | None:
    """Return the parameters in a query string; None for those of a long search, and for wrong ones."""
    if query.count(b"&") >= len(SHORT_PARAMETERS):
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    values = dict(pairs)
    if len(values) < len(pairs) or not values.keys() <= SHORT_PARAMETERS or not all(values.values()):
        return None
    try:
        return QuerySearchParams.model_validate(values)
    except ValidationError:
        return None


IMMEDIATE_VECTOR_SEARCH = ImmediateRoute(
    PREFIX, SUFFIX, f"{PREFIX}{{collection}}{SUFFIX}", BY_VECTOR, Work.SEARCH, JSON.encode(), answer_from_memory
)
