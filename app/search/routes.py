"""Search 1:N by photo and by enrolled face, and verify 1:1."""

from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from app.db.field_types import CollectionName, FaceName
from app.deps import CallerDep, EngineDep
from app.deps.admission.work import SEARCHES
from app.deps.audit import audit_as
from app.deps.headers import describe_headers
from app.deps.photos import PhotoIn, PhotosIn, describe_bodies, read_photos
from app.deps.problems import declare_problems
from app.deps.roles import PHOTO, READ, READER
from app.deps.scopes import COLLECTION
from app.deps.server.change_number import UNREADABLE, ChangeNumber, read_change_number
from app.search import service
from app.search.context import open_context
from app.search.params import PhotoSearchParams, SearchParams, VerifyParams
from app.search.response import json_response
from app.search.schemas import SearchOut, VerifyOut
from app.search.usual_queries import parse_usual

CollectionId = Annotated[CollectionName, Path(alias="collection")]
FaceId = Annotated[FaceName, Path()]
READ_PHOTO = read_photos(PhotoIn)
PhotoDep = Annotated[PhotoIn, Depends(READ_PHOTO)]
PhotosDep = Annotated[PhotosIn, Depends(read_photos(PhotosIn))]
SEARCH_PROBLEMS = (
    (404, "ResourceNotFound"), (404, "UnknownTask"), (404, "UnknownModel"),
    (409, "NotCalibrated"), (409, "TaskDisabled"),
)  # fmt: skip
BY_PHOTO = {
    **READER,
    **READ,
    **COLLECTION,
    **PHOTO,
    **describe_bodies(PhotoIn, file="visitor.jpg"),
    **declare_problems(*SEARCH_PROBLEMS, (409, "ExternalDescriptor"), (422, "NoFace")),
}
BY_FACE = {**READER, **READ, **COLLECTION, **SEARCHES, **declare_problems(*SEARCH_PROBLEMS)}
BY_PAIR = {
    **READER,
    **READ,
    **COLLECTION,
    **PHOTO,
    **describe_bodies(PhotosIn, file=["one.jpg", "other.jpg"]),
    **declare_problems(*SEARCH_PROBLEMS, (409, "ExternalDescriptor"), (422, "NoFace")),
}
SEARCH_HEADERS: dict[int | str, dict[str, Any]] = {200: describe_headers("X-Model", "X-Index-Generation")}


COLLECTION_ID: TypeAdapter[str] = TypeAdapter(CollectionName)
open_photo = asynccontextmanager(READ_PHOTO)


class PhotoRoute(APIRoute):
    """Reads the parameters of a usual search by photo itself; see `app.search.usual_queries`.

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


router = APIRouter(prefix="/v1", tags=["search"])
photo_router = APIRouter(prefix="/v1", tags=["search"], route_class=PhotoRoute)


@photo_router.post(
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


@router.post(
    "/collections/{collection}/faces/{face_id}/search",
    summary="Search with an enrolled face",
    response_model=SearchOut,
    openapi_extra=BY_FACE | audit_as("search.face"),
    responses=SEARCH_HEADERS,
)
def search_by_face(
    collection: CollectionId,
    face_id: FaceId,
    params: Annotated[SearchParams, Query()],
    engine: EngineDep,
    change: ChangeNumber = None,
) -> Response:
    """Returns the people nearest to an enrolled face. The face itself is left out."""
    with open_context(engine, change) as context:
        return json_response(context, service.search_by_face(context, collection, face_id, params))


@router.post(
    "/verify",
    summary="Are these one person?",
    response_model=VerifyOut,
    openapi_extra=BY_PAIR | audit_as("face.verify"),
    responses=SEARCH_HEADERS,
)
def verify_pair(
    body: PhotosDep,
    params: Annotated[VerifyParams, Query()],
    engine: EngineDep,
    caller: CallerDep,
    change: ChangeNumber = None,
) -> Response:
    """Compares the largest faces of two photos (`file` twice, or `images` in JSON), or the largest face of one photo
    with an enrolled face or with the nearest face of a subject. `passes` is decided at `fmr` or at the collection's
    default false-match rate."""
    with open_context(engine, change, caller.collections) as context:
        return json_response(context, service.verify_pair(context, body.images, params))
