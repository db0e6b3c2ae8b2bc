"""Search 1:N by vector: on the event loop and from memory alone where that is enough, else in a thread."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.background import BackgroundTask

from app.db.immediate import DatabaseNeeded
from app.deps import EngineDep
from app.deps.admission.work import Work
from app.deps.audit import audit_as
from app.deps.roles import LARGE_JSON
from app.deps.server.change_number import UNREADABLE, ChangeNumber, read_change_number
from app.deps.server.immediate_answers import ImmediateAnswer, ImmediateRoute, ReadRequest
from app.errors import AppError
from app.search import service
from app.search.context import SearchContext, open_context
from app.search.params import MAX_VECTOR_NUMBERS, MAX_VECTOR_VALUE, QuerySearchParams, VectorIn, parse_usual
from app.search.response import describe_model, json_response, serialise
from app.search.routes import BY_FACE, SEARCH_HEADERS, CollectionId
from app.search.schemas import SearchOut
from ml.errors import LikenessError

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
            [answer] = answer_from_memory([ReadRequest(request.scope, collection, await request.body())])
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


def answer_from_memory(requests: Sequence[ReadRequest]) -> list[ImmediateAnswer | None]:
    """Answer searches from memory, those of one collection with the same parameters together.

    Returns None for each that is long, wrong, or needs the database.
    """
    answers: list[ImmediateAnswer | None] = [None] * len(requests)
    groups: dict[tuple[str, bytes, int | None], list[tuple[int, list[float]]]] = {}
    for position, request in enumerate(requests):
        query, vector = request.scope["query_string"], _parse_vector(request.body)
        change = read_change_number(request.scope)
        if vector is not None and change != UNREADABLE:
            groups.setdefault((request.collection, query, change), []).append((position, vector))
    for (collection, query, change), members in groups.items():
        params = parse_usual(query, QuerySearchParams)
        if params is not None:
            context = SearchContext(requests[0].scope["state"]["engine"], None, change)
            hits = _search(context, collection, [vector for _, vector in members], params)
            for (position, _), answer in zip(members, hits, strict=True):
                answers[position] = answer
    return answers


def _search(
    context: SearchContext, collection: str, vectors: list[list[float]], params: QuerySearchParams
) -> list[ImmediateAnswer | None]:
    """Search with vectors together or, where that is not possible, with each alone."""
    try:
        if len(vectors) == 1:
            hits = [service.search_by_vector(context, collection, vectors[0], params)]
        else:
            hits = service.search_by_vectors(context, collection, vectors, params)
    except (DatabaseNeeded, AppError, LikenessError):
        if len(vectors) == 1:
            return [None]
        return [answer for vector in vectors for answer in _search(context.copy(), collection, [vector], params)]
    after = context.finish if context.after_answer else None
    headers = _encode_headers(hits[0])  # of the model, which is the same for all
    return [ImmediateAnswer(headers, serialise(answer), after) for answer in hits]


def _encode_headers(answer: SearchOut) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in describe_model(answer).items()]


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


IMMEDIATE_VECTOR_SEARCH = ImmediateRoute(
    PREFIX, SUFFIX, f"{PREFIX}{{collection}}{SUFFIX}", BY_VECTOR, Work.SEARCH, JSON.encode(), answer_from_memory
)
