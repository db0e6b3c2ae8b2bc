"""Search: 1:N by photo, by enrolled face and by vector; verify: 1:1."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from app.db.field_types import CollectionName, FaceName
from app.deps import CallerDep, EngineDep
from app.deps.headers import telling
from app.deps.photos import PhotoIn, PhotosIn, bodies, sent
from app.deps.problems import refuses
from app.deps.roles import PHOTO, READER
from app.search import service
from app.search.context import open_context
from app.search.params import PhotoSearchParams, SearchParams, VectorIn, VerifyParams
from app.search.response import json_response
from app.search.schemas import SearchOut, VerifyOut

router = APIRouter(prefix="/v1", tags=["search"])
CollectionId = Annotated[CollectionName, Path(alias="collection")]
FaceId = Annotated[FaceName, Path()]
PhotoDep = Annotated[PhotoIn, Depends(sent(PhotoIn))]
PhotosDep = Annotated[PhotosIn, Depends(sent(PhotosIn))]
SEARCHES = (
    (404, "ResourceNotFound"), (404, "UnknownTask"), (404, "UnknownModel"),
    (409, "NotCalibrated"), (409, "TaskDisabled"),
)  # fmt: skip
BY_PHOTO = {**READER, **PHOTO, **bodies(PhotoIn, file="visitor.jpg"), **refuses(*SEARCHES, (422, "NoFace"))}
BY_FACE = {**READER, **refuses(*SEARCHES)}
PAIR = {**READER, **PHOTO, **bodies(PhotosIn, file=["one.jpg", "other.jpg"]), **refuses(*SEARCHES, (422, "NoFace"))}
FOUND: dict[int | str, dict[str, Any]] = {200: telling("X-Model", "X-Index-Generation")}


@router.post(
    "/collections/{collection}/search",
    summary="Search with a photo",
    response_model=SearchOut,
    openapi_extra=BY_PHOTO,
    responses=FOUND,
)
def search_by_photo(
    collection: CollectionId, body: PhotoDep, params: Annotated[PhotoSearchParams, Query()], engine: EngineDep
) -> Response:
    """The enrolled faces nearest to the largest face of a photo, or to each of its faces.

    Without `threshold` or `fmr` the nearest `limit` return, and `passes` says which of them would pass at the
    collection's default false-match rate; with one of them only those that pass, and where nobody does the answer is
    `unknown`. `similarity` is 100 x the calibrated probability that both are one person, at even odds; as long as the
    collection is not `calibrated` it is an order only. A photo without a face is a 422 with the code `NoFace`.
    """
    with open_context(engine) as context:
        return json_response(service.search_by_photo(context, collection, body.image, params))


@router.post(
    "/collections/{collection}/faces/{face_id}/search",
    summary="Search with an enrolled face",
    response_model=SearchOut,
    openapi_extra=BY_FACE,
    responses=FOUND,
)
def search_by_face(
    collection: CollectionId, face_id: FaceId, params: Annotated[SearchParams, Query()], engine: EngineDep
) -> Response:
    """The other enrolled faces nearest to this one."""
    with open_context(engine) as context:
        return json_response(service.search_by_face(context, collection, face_id, params))


@router.post(
    "/collections/{collection}/search:by-embedding",
    summary="Search with a vector",
    response_model=SearchOut,
    openapi_extra=BY_FACE,
    responses=FOUND,
)
def search_by_vector(
    collection: CollectionId, body: VectorIn, params: Annotated[SearchParams, Query()], engine: EngineDep
) -> Response:
    """The enrolled faces nearest to a vector in the space of the model's embeddings.

    A vector of another length, or with a number that is not finite, is a 422 that says how many are needed.
    """
    with open_context(engine) as context:
        return json_response(service.search_by_vector(context, collection, body.vector, params))


@router.post(
    "/verify",
    summary="Are these one person?",
    response_model=VerifyOut,
    openapi_extra=PAIR,
    responses=FOUND,
)
def verify_pair(
    body: PhotosDep, params: Annotated[VerifyParams, Query()], engine: EngineDep, caller: CallerDep
) -> Response:
    """Compares the largest faces of two photos (`file` given twice, or `images` in JSON), or of one photo with an
    enrolled face or with the nearest face of a subject. `passes` goes by `fmr`, or by the collection's default
    false-match rate."""
    with open_context(engine) as context:
        return json_response(service.verify(context, caller, body.images, params))
