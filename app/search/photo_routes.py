"""Search 1:N by photo, with the usual parameters read without FastAPI."""

from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from app.db.field_types import CollectionName
from app.deps import EngineDep
from app.deps.audit import audit_as
from app.deps.photos import PhotoIn, describe_bodies, read_photos
from app.deps.problems import declare_problems
from app.deps.roles import PHOTO, READ, READER
from app.deps.scopes import COLLECTION
from app.deps.server.change_number import UNREADABLE, ChangeNumber, read_change_number
from app.search import service
from app.search.context import open_context
from app.search.params import PhotoSearchParams, parse_usual
from app.search.response import json_response
from app.search.routes import SEARCH_HEADERS, SEARCH_PROBLEMS, CollectionId
from app.search.schemas import SearchOut

READ_PHOTO = read_photos(PhotoIn)
PhotoDep = Annotated[PhotoIn, Depends(READ_PHOTO)]
BY_PHOTO = {
    **READER,
    **READ,
    **COLLECTION,
    **PHOTO,
    **describe_bodies(PhotoIn, file="visitor.jpg"),
    **declare_problems(*SEARCH_PROBLEMS, (409, "ExternalDescriptor"), (422, "NoFace")),
}
COLLECTION_ID: TypeAdapter[str] = TypeAdapter(CollectionName)
open_photo = asynccontextmanager(READ_PHOTO)


class PhotoRoute(APIRoute):
    """Reads the parameters of a usual search by photo itself; see `parse_usual`.

    Everything else, wrong parameters included, goes on to FastAPI. The body is read by the same function.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what handles a request."""
        handle = super().get_route_handler()

        async def handle_usual(request: Request) -> Response:
            params = parse_usual(request.scope["query_string"], PhotoSearchParams)
            change = read_change_number(request.scope)
            try:
                collection = COLLECTION_ID.validate_python(request.path_params["collection"])
            except ValidationError:
                return await handle(request)
            if params is None or change == UNREADABLE:
                return await handle(request)
            async with open_photo(request) as body:
                return await run_in_threadpool(search_by_photo, collection, body, params, request.state.engine, change)

        return handle_usual


router = APIRouter(prefix="/v1", tags=["search"], route_class=PhotoRoute)


@router.post(
    "/collections/{collection}/search",
    summary="Search with a photo",
    response_model=SearchOut,
    openapi_extra=BY_PHOTO | audit_as("search.photo"),
    responses=SEARCH_HEADERS,
)
def search_by_photo(
    collection: CollectionId,
    body: PhotoDep,
    params: Annotated[PhotoSearchParams, Query()],
    engine: EngineDep,
    change: ChangeNumber = None,
) -> Response:
    """Returns the enrolled people nearest to the largest face of a photo, or to each of its faces.

    By default the nearest `limit` people are returned, `decision` says whether the search names one of them, and
    `passes` says which of them pass at `fpir`. With `threshold` or `fmr`, only people who pass are returned, and the
    decision is `unknown` if there are none. `similarity` is 100 x the calibrated probability that both faces show one
    person, at even odds; it is null while the collection is not `calibrated`. A photo without a face is answered with
    422 `NoFace`.
    """
    with open_context(engine, change) as context:
        return json_response(context, service.search_by_photo(context, collection, body.image, params))
