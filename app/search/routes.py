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
from app.search.answering import answered
from app.search.asked import Asked, PhotoAsked, VectorIn, VerifyAsked
from app.search.desk import open_desk
from app.search.schemas import Answer, Verdict
from app.search.verifying import verify

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
    response_model=Answer,
    openapi_extra=BY_PHOTO,
    responses=FOUND,
)
def search_by_photo(
    collection: CollectionId, body: PhotoDep, asked: Annotated[PhotoAsked, Query()], engine: EngineDep
) -> Response:
    """The enrolled faces nearest to the largest face of a photo, or to each of its faces.

    Without `threshold` or `fmr` the nearest `limit` return, and `passes` says which of them would pass at the
    collection's default false-match rate; with one of them only those that pass, and where nobody does the answer is
    `unknown`. `similarity` is 100 x the calibrated probability that both are one person, at even odds; as long as the
    collection is not `calibrated` it is an order only. A photo without a face is a 422 with the code `NoFace`.
    """
    with open_desk(engine) as desk:
        return answered(service.by_photo(desk, collection, body.image, asked))


@router.post(
    "/collections/{collection}/faces/{face_id}/search",
    summary="Search with an enrolled face",
    response_model=Answer,
    openapi_extra=BY_FACE,
    responses=FOUND,
)
def search_by_face(
    collection: CollectionId, face_id: FaceId, asked: Annotated[Asked, Query()], engine: EngineDep
) -> Response:
    """The other enrolled faces nearest to this one."""
    with open_desk(engine) as desk:
        return answered(service.by_face(desk, collection, face_id, asked))


@router.post(
    "/collections/{collection}/search:by-embedding",
    summary="Search with a vector",
    response_model=Answer,
    openapi_extra=BY_FACE,
    responses=FOUND,
)
def search_by_vector(
    collection: CollectionId, body: VectorIn, asked: Annotated[Asked, Query()], engine: EngineDep
) -> Response:
    """The enrolled faces nearest to a vector in the space of the model's embeddings.

    A vector of another length, or with a number that is not finite, is a 422 that says how many are needed.
    """
    with open_desk(engine) as desk:
        return answered(service.by_vector(desk, collection, body.vector, asked))


@router.post(
    "/verify",
    summary="Are these one person?",
    response_model=Verdict,
    openapi_extra=PAIR,
    responses=FOUND,
)
def verify_pair(
    body: PhotosDep, asked: Annotated[VerifyAsked, Query()], engine: EngineDep, caller: CallerDep
) -> Response:
    """Compares the largest faces of two photos (`file` given twice, or `images` in JSON), or of one photo with an
    enrolled face or with the nearest face of a subject. `passes` goes by `fmr`, or by the collection's default
    false-match rate."""
    with open_desk(engine) as desk:
        return answered(verify(desk, caller, body.images, asked))
