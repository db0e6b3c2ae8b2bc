"""Enrolled faces, one photo at a time or many at once."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from app.db import examples
from app.db.field_types import NO_NUL, CollectionName, FaceName, Role
from app.deps import EngineDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.job_response import JobOut, accepted
from app.deps.paging import Order
from app.deps.photos import sent
from app.deps.roles import ARCHIVE, OPERATOR, PHOTO, READER
from app.enrolment.photo_analysis import EnrolmentRequest
from app.faces import bodies, service
from app.faces.schemas import EnrolIn, EnrolledOut, FaceOut, FacePatch, FacesOut
from app.faces.streaming import ReceivedDep
from ml.types import CropKind

router = APIRouter(prefix="/v1/collections", tags=["faces"])

CollectionId = Annotated[CollectionName, Path(alias="collection")]
FaceId = Annotated[FaceName, Path(max_length=36)]
IsAligned = Annotated[bool, Query(description="each photo is one aligned face and is taken as it is")]
OfSubject = Annotated[
    str | None, Query(pattern=NO_NUL, description="only faces of this subject", examples=[examples.SUBJECT])
]
OfRole = Annotated[Role | Literal[""] | None, Query(description="only faces of this role", examples=["distractor"])]
MaxFaces = Annotated[
    int | None, Query(ge=1, description="by default 1 where a subject is given, else all", examples=[1])
]
Kind = Annotated[CropKind, Query(description="colour: 112 x 112 pixels; grey: 100 x 170")]


@router.post(
    "/{collection}/faces",
    status_code=201,
    summary="Enrol a photo",
    responses=bodies.ENROLLED,
    openapi_extra={**OPERATOR, **PHOTO, **bodies.PHOTO, **bodies.ENROLS},
)
def enrol_photo(
    collection: CollectionId,
    engine: EngineDep,
    response: Response,
    body: Annotated[EnrolIn, Depends(sent(EnrolIn))],
    max_faces: MaxFaces = None,
) -> EnrolledOut:
    """201 with what is new; 200 where the photo was there under the same subject and role, or holds no face to enrol.

    With a subject, only the largest face belongs to it. With `bounding_box`, only the face there is enrolled, and the
    subject, if one is given, is whose face that is. 409 `DuplicateWithOtherSubject` where the photo is enrolled
    under another subject or role; 422 `InvalidImageFormat`, `ImageTooLarge`.
    """
    wish = EnrolmentRequest(
        subject=body.subject, role=body.role, external_image_id=body.external_image_id, metadata=body.metadata,
        aligned=body.aligned, max_faces=max_faces, bounding_box=body.box,
    )  # fmt: skip
    enrolled, new = service.add(engine, collection, body.image, wish)
    response.status_code = 201 if new else 200
    return enrolled


@router.post(
    "/{collection}:import",
    status_code=202,
    summary="Import many photos",
    openapi_extra={**OPERATOR, **ARCHIVE, **bodies.ARCHIVES},
)
def import_archive(
    collection: CollectionId,
    path: ReceivedDep,
    resources: ResourcesDep,
    session: WriteDep,
    response: Response,
    role: Annotated[Role, Query(description="distractor: faces of nobody of interest")] = "gallery",
    aligned: IsAligned = False,
) -> JobOut:
    """A photo's first folder is its subject, which is made; or `manifest.csv` or `manifest.jsonl` in the archive says.

    The job has one item for each file, `done` or `failed` with its reasons, and succeeds once the serving index holds
    them. An archive with `..`, absolute paths, links, or over a limit is refused whole.
    """
    job = service.accept(resources, session, collection, path, role, aligned)
    accepted(response, job)
    return JobOut.of(job)


@router.get("/{collection}/faces", summary="List faces", openapi_extra=READER)
def list_faces(
    collection: CollectionId,
    session: ReadDep,
    subject: OfSubject = None,
    role: OfRole = None,
    order: Order = "oldest",
    limit: Limit = 100,
    next_token: NextToken = None,
) -> FacesOut:
    """In the order of their enrolment; with `order=newest` the last enrolled first."""
    return service.listed(session, collection, service.FaceFilter(subject, role, order), limit, next_token)


@router.get("/{collection}/faces/{face_id}", summary="Look at a face", openapi_extra=READER)
def get_face(collection: CollectionId, face_id: FaceId, session: ReadDep) -> FaceOut:
    """Where it was found, how good it is, and whose it is."""
    return service.shown(session, [service.get(session, collection, face_id)])[0]


@router.get(
    "/{collection}/faces/{face_id}/crop",
    summary="A face's crop",
    response_class=Response,
    openapi_extra=READER,
    responses=bodies.CROP,
)
def get_crop(
    collection: CollectionId, face_id: FaceId, session: ReadDep, resources: ResourcesDep, kind: Kind = "colour"
) -> Response:
    """The aligned face as PNG: `colour` 112 x 112, `grey` 100 x 170."""
    crop = service.crop(session, resources.blobs, collection, face_id, kind)
    return Response(crop, media_type="image/png", headers=service.PRIVATE)


@router.get(
    "/{collection}/faces/{face_id}/image",
    summary="A face's photo",
    response_class=Response,
    openapi_extra=READER,
    responses=bodies.PICTURE,
)
def get_photo(collection: CollectionId, face_id: FaceId, session: ReadDep, resources: ResourcesDep) -> Response:
    """The photo as it was uploaded."""
    photo = service.photo(session, resources.blobs, collection, face_id)
    return Response(photo, media_type=service.media_type(photo), headers=service.PRIVATE)


@router.patch("/{collection}/faces/{face_id}", summary="Change a face", openapi_extra=OPERATOR)
def change_face(collection: CollectionId, face_id: FaceId, body: FacePatch, session: WriteDep) -> FaceOut:
    """Its subject, role, external id or metadata; what is left out stays."""
    return service.change(session, collection, face_id, body)


@router.delete("/{collection}/faces/{face_id}", status_code=204, summary="Delete a face", openapi_extra=OPERATOR)
def delete_face(collection: CollectionId, face_id: FaceId, session: WriteDep) -> None:
    """With its labels, embeddings and index entries; its files follow by a job."""
    service.remove(session, collection, face_id)
