"""Search 1:N by vector: on the event loop and from memory alone where that is enough, else in a thread."""

from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from app.db.immediate import DatabaseNeeded
from app.deps import EngineDep
from app.deps.audit import audit_as
from app.deps.roles import LARGE_JSON
from app.deps.server.change_number import NAME, ChangeNumber
from app.search import service
from app.search.context import SearchContext, open_context
from app.search.params import QuerySearchParams, VectorIn
from app.search.response import json_response
from app.search.routes import BY_FACE, SEARCH_HEADERS, CollectionId
from app.search.schemas import SearchOut

MAX_CACHED_QUERIES, MAX_CACHED_QUERY_BYTES = 256, 512
SHORT_PARAMETERS = {"limit", "fpir", "threshold", "fmr", "task", "group_by", "source"}
JSON = "application/json"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ImmediateRoute(APIRoute):
    """Answers a short search from memory before the framework looks at it, which would take as long again.

    Everything else, wrong requests included, goes on to the route's function in a thread.
    """

    def get_route_handler(self) -> Handler:
        """Return what handles a request."""
        handle = super().get_route_handler()

        async def handle_immediately(request: Request) -> Response:
            return await _search_immediately(request) or await handle(request)

        return handle_immediately


router = APIRouter(prefix="/v1", tags=["search"], route_class=ImmediateRoute)


@router.post(
    "/collections/{collection}/search:by-embedding",
    summary="Search with a vector",
    response_model=SearchOut,
    openapi_extra=BY_FACE | LARGE_JSON | audit_as("search.vector"),
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


async def _search_immediately(request: Request) -> Response | None:
    """Answer a search from memory. Returns None for one that is long, wrong, or needs the database."""
    scope = request.scope
    query, headers = scope["query_string"], request.headers
    params = _parse_short(query) if len(query) <= MAX_CACHED_QUERY_BYTES else None
    if params is None or headers.get("content-type") != JSON or NAME in headers:
        return None
    try:
        body = VectorIn.model_validate_json(await request.body())
        context = SearchContext(request.state.engine, None)
        answer = service.search_by_vector(context, request.path_params["collection"], body.vector, params)
    except (DatabaseNeeded, ValidationError):
        return None
    return json_response(context, answer)


@lru_cache(MAX_CACHED_QUERIES)
def _parse_short(query: bytes) -> QuerySearchParams | None:
    """Return the parameters in a query string; None for those of a long search, and for wrong ones."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    values = dict(pairs)
    if len(values) < len(pairs) or not values.keys() <= SHORT_PARAMETERS or not all(values.values()):
        return None
    try:
        return QuerySearchParams.model_validate(values)
    except ValidationError:
        return None
