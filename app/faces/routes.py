"""Enrol photos, import archives, and list, read, change and delete faces."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from app.db import examples, lookups
from app.db.field_types import MAX_INTEGER, NO_NUL, CollectionName, FaceName, Role, Source
from app.deps import AuditDep, CallerDep, EngineDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.headers import describe_headers
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut, point_to_job
from app.deps.paging import Order
from app.deps.photos import read_photos
from app.deps.problems import declare_problems
from app.deps.roles import ARCHIVE, OPERATOR, PHOTO, READER
from app.deps.scopes import COLLECTION
from app.enrolment.photo_analysis import EnrolmentRequest
from app.faces import bodies, service
from app.faces.schemas import EnrolIn, EnrolledOut, FaceOut, FacePatch, FacesOut
from app.faces.service import ImportOptions
from app.faces.streaming import ReceivedDep
from ml.types import CropKind

router = APIRouter(prefix="/v1/collections", tags=["faces"], route_class=AnswerRoute)

CollectionId = Annotated[CollectionName, Path(alias="collection")]
FaceId = Annotated[FaceName, Path(max_length=36)]
IsAligned = Annotated[bool, Query(description="each photo is one aligned face: skip detection")]
OfSubject = Annotated[
    str | None, Query(pattern=NO_NUL, description="only faces of this subject", examples=[examples.SUBJECT])
]
OfRole = Annotated[Role | Literal[""] | None, Query(description="only faces of this role", examples=["distractor"])]
OfSource = Annotated[Source | Literal[""] | None, Query(description="only faces of this source")]
MaxFaces = Annotated[
    int | None,
    Query(
        ge=1,
        le=MAX_INTEGER,
        description="the most faces to enrol; by default 1 if a subject is given, else all",
        examples=[1],
    ),
]
DAMAGED = declare_problems((500, "StoredFileDamaged"))
Kind = Annotated[CropKind, Query(description="colour: 112 x 112 pixels; grey: 100 x 170")]


@router.post(
    "/{collection}/faces",
    status_code=201,
    summary="Enrol a photo",
    responses=bodies.ENROLLED_RESPONSE,
    openapi_extra={**OPERATOR, **COLLECTION, **PHOTO, **bodies.ENROL_BODY, **bodies.ENROL_PROBLEMS}
    | audit_as("face.enrol"),
)
def enrol_photo(
    collection: CollectionId,
    engine: EngineDep,
    caller: CallerDep,
    audit: AuditDep,
    response: Response,
    body: Annotated[EnrolIn, Depends(read_photos(EnrolIn))],
    max_faces: MaxFaces = None,
) -> EnrolledOut:
    """201 with the new faces. 200 if the photo is enrolled already under the same subject and role, or has no face to
    enrol.

    With a subject, only the largest face belongs to it. With `bounding_box`, only the face there is enrolled, and it
    belongs to the subject, if one is given. 409 `DuplicateWithOtherSubject` if the photo is enrolled under another
    subject or role, `ResourceInUse` if the subject or the collection was deleted meanwhile; 422 `InvalidImageFormat`,
    `ImageTooLarge`.
    """
    request = EnrolmentRequest(
        subject=body.subject, role=body.role, external_image_id=body.external_image_id, metadata=body.metadata,
        source=body.source, aligned=body.aligned, max_faces=max_faces, bounding_box=body.box,
    )  # fmt: skip
    enrolled, new = service.enrol_photo(engine, caller, collection, body.image, request)
    audit.resource = service.name_enrolled_face(enrolled)
    response.status_code = 201 if new else 200
    return enrolled


@router.post(
    "/{collection}:import",
    status_code=202,
    summary="Import many photos",
    openapi_extra={**OPERATOR, **COLLECTION, **ARCHIVE, **bodies.IMPORT_BODY, **bodies.IMPORT_PROBLEMS}
    | audit_as("face.import"),
)
def import_archive(
    collection: CollectionId,
    received: ReceivedDep,
    resources: ResourcesDep,
    session: WriteDep,
    response: Response,
    role: Annotated[Role, Query(description="distractor: faces of people who are not of interest")] = "gallery",
    aligned: IsAligned = False,
    source: Annotated[Source | None, Query(description="of all photos for which a manifest states none")] = None,
) -> JobOut:
    """The first folder of a photo's path names its subject, which is created if it is new; a `manifest.csv` or
    `manifest.jsonl` in the archive may name others.

    The job has one item for each file, `done` or `failed` with its reasons. It succeeds once the serving index holds
    the faces. An archive with `..`, absolute paths or links, or one that exceeds a limit, is refused as a whole.
    """
    job = service.accept_import(resources, session, collection, received, ImportOptions(role, aligned, source))
    point_to_job(response, job)
    return JobOut.of(job)


@router.get("/{collection}/faces", summary="List faces", openapi_extra=READER | COLLECTION)
def list_faces(
    collection: CollectionId,
    session: ReadDep,
    subject: OfSubject = None,
    role: OfRole = None,
    source: OfSource = None,
    order: Order = "oldest",
    limit: Limit = 100,
    next_token: NextToken = None,
) -> FacesOut:
    """Faces in the order of their enrolment; with `order=newest`, the last enrolled come first."""
    return service.list_faces(session, collection, service.FaceFilter(subject, role, source, order), limit, next_token)


@router.get("/{collection}/faces/{face_id}", summary="Look at a face", openapi_extra=READER | COLLECTION)
def get_face(collection: CollectionId, face_id: FaceId, session: ReadDep) -> FaceOut:
    """The face: its photo, its place in the photo, its quality and its subject."""
    return service.describe_faces(session, [lookups.get_face(session, collection, face_id)])[0]


@router.get(
    "/{collection}/faces/{face_id}/crop",
    summary="A face's crop",
    response_class=Response,
    openapi_extra=READER | COLLECTION | DAMAGED | audit_as("crop.read"),
    responses=bodies.CROP_RESPONSE,
)
def get_crop(
    collection: CollectionId, face_id: FaceId, session: ReadDep, resources: ResourcesDep, kind: Kind = "colour"
) -> Response:
    """The aligned face as PNG: `colour` 112 x 112, `grey` 100 x 170. 500 `StoredFileDamaged` if the file is damaged."""
    crop = service.read_crop(session, resources.blobs, collection, face_id, kind)
    return Response(crop, media_type="image/png")


@router.get(
    "/{collection}/faces/{face_id}/image",
    summary="A face's photo",
    response_class=Response,
    openapi_extra=READER | COLLECTION | DAMAGED | audit_as("photo.read"),
    responses=bodies.PHOTO_RESPONSE,
)
def get_photo(collection: CollectionId, face_id: FaceId, session: ReadDep, resources: ResourcesDep) -> Response:
    """The photo as it was uploaded. Its content is checked: 500 `StoredFileDamaged` if it is damaged."""
    photo = service.read_photo(session, resources.blobs, collection, face_id)
    return Response(photo, media_type=service.guess_media_type(photo))


@router.patch(
    "/{collection}/faces/{face_id}",
    summary="Change a face",
    openapi_extra=OPERATOR | COLLECTION | bodies.NAMING_PROBLEMS | audit_as("face.change"),
)
def change_face(
    collection: CollectionId, face_id: FaceId, body: FacePatch, session: WriteDep, resources: ResourcesDep
) -> FaceOut:
    """Changes the subject, role, external id or metadata. Fields that are left out keep their values. 409
    `EnrolmentNotAllowed` if the face may not be used any more: its subject has refused consent, or `retain_until` has
    passed; if the given subject may not be enrolled; or if none is given and the present one has a `retain_until`."""
    needs_consent = resources.settings.require_consent
    return service.change_face(session, collection, face_id, body, needs_consent=needs_consent)


@router.delete(
    "/{collection}/faces/{face_id}",
    status_code=204,
    summary="Delete a face",
    openapi_extra=OPERATOR | COLLECTION | audit_as("face.delete"),
    responses={204: describe_headers("X-Erasure")},
)
def delete_face(collection: CollectionId, face_id: FaceId, session: WriteDep, response: Response) -> None:
    """Deletes the face with its labels and embeddings, and removes it from the indexes. A job erases its files and all
    other traces."""
    response.headers["X-Erasure"] = f"/v1/erasures/{service.delete_face(session, collection, face_id)}"
