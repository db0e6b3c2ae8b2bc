"""Search 1:N by enrolled face, and verify 1:1."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from app.db.field_types import CollectionName, FaceName
from app.deps import AuditDep, CallerDep, EngineDep
from app.deps.admission.work import SEARCHES
from app.deps.audit import audit_as
from app.deps.headers import describe_headers
from app.deps.photos import PhotosIn, describe_bodies, read_photos
from app.deps.problems import declare_problems
from app.deps.roles import PHOTO, READ, READER
from app.deps.scopes import COLLECTION
from app.deps.server.change_number import ChangeNumber
from app.search import service
from app.search.context import open_context
from app.search.params import SearchParams, VerifyParams
from app.search.response import json_response
from app.search.schemas import SearchOut, VerifyOut

CollectionId = Annotated[CollectionName, Path(alias="collection")]
FaceId = Annotated[FaceName, Path()]
PhotosDep = Annotated[PhotosIn, Depends(read_photos(PhotosIn))]
SEARCH_PROBLEMS = (
    (404, "ResourceNotFound"), (404, "UnknownTask"), (404, "UnknownModel"),
    (409, "NotCalibrated"), (409, "TaskDisabled"),
)  # fmt: skip
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


router = APIRouter(prefix="/v1", tags=["search"])


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
    audit: AuditDep,
    change: ChangeNumber = None,
) -> Response:
    """Compares the largest faces of two photos (`file` twice, or `images` in JSON), or the largest face of one photo
    with an enrolled face or with the nearest face of a subject. `passes` is decided at `fmr` or at the collection's
    default false-match rate."""
    with open_context(engine, change, caller.collections, audit) as context:
        return json_response(context, service.verify_pair(context, body.images, params))
