"""Create, list, change, merge and delete the subjects of a collection."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName, NewSubjectId, SubjectId
from app.deps import Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.problems import declare_problems
from app.deps.roles import OPERATOR, READER
from app.deps.scopes import COLLECTION
from app.galleries import subjects
from app.subjects import service
from app.subjects.schemas import ErasedOut, MergeIn, SubjectIn, SubjectOut, SubjectsOut

router = APIRouter(prefix="/v1/collections/{collection}/subjects", tags=["subjects"], route_class=AnswerRoute)

CollectionId = Annotated[CollectionName, Path(alias="collection")]
Id = Annotated[SubjectId, Path(alias="subject")]
NewId = Annotated[NewSubjectId, Path(alias="subject")]


@router.put(
    "/{subject}",
    status_code=201,
    summary="Make a subject, or change it",
    openapi_extra=OPERATOR | COLLECTION | audit_as("subject.put"),
    responses={200: {"model": SubjectOut, "description": "the subject existed already"}},
)
def put_subject(
    collection: CollectionId, subject: NewId, session: WriteDep, response: Response, body: SubjectIn | None = None
) -> SubjectOut:
    """201 if the subject is new, 200 if it existed already. Enrolling a photo under a new subject creates it too."""
    subject_out, new = service.put_subject(session, collection, subject, body or SubjectIn())
    response.status_code = 201 if new else 200
    return subject_out


@router.get("", summary="List subjects", openapi_extra=READER | COLLECTION)
def list_subjects(
    collection: CollectionId, session: ReadDep, limit: Limit = 100, next_token: NextToken = None
) -> SubjectsOut:
    """Subjects in the order of their ids, each with the number of its faces."""
    return service.list_subjects(session, collection, limit, next_token)


@router.get("/{subject}", summary="Look at a subject", openapi_extra=READER | COLLECTION)
def get_subject(collection: CollectionId, subject: Id, session: ReadDep) -> SubjectOut:
    """The subject. `GET /v1/collections/{collection}/faces?subject=` lists its faces."""
    return service.describe_subjects(session, [subjects.get_subject(session, collection, subject)])[0]


@router.patch(
    "/{subject}", summary="Change a subject", openapi_extra=OPERATOR | COLLECTION | audit_as("subject.change")
)
def change_subject(collection: CollectionId, subject: Id, body: SubjectIn, session: WriteDep) -> SubjectOut:
    """Changes the fields in the body. Fields that are left out keep their values."""
    return service.change_subject(session, collection, subject, body)


@router.post(
    "/{subject}:merge",
    summary="Merge a subject into another",
    openapi_extra={**OPERATOR, **COLLECTION, **declare_problems((409, "EnrolmentNotAllowed"))}
    | audit_as("subject.merge"),
)
def merge_subject(
    collection: CollectionId, subject: Id, body: MergeIn, session: WriteDep, resources: ResourcesDep
) -> SubjectOut:
    """Moves all faces to the other subject and deletes this one. If both have a metadata field, the other's is kept.
    409 if the faces of either may not be used any more: consent was refused, or `retain_until` has passed. 422 if more
    than 100 subjects would have been merged into the other, or in the collection with the id or external id of this."""
    needs_consent = resources.settings.require_consent
    return service.merge_subjects(session, collection, subject, body.into, needs_consent=needs_consent)


@router.delete(
    "/{subject}", summary="Delete a subject", openapi_extra=OPERATOR | COLLECTION | audit_as("subject.delete")
)
def delete_subject(collection: CollectionId, subject: Id, session: WriteDep) -> ErasedOut:
    """Deletes the subject with all its faces, their labels and embeddings, and removes them from the indexes. A job
    erases their files and all other traces; `erasure` is the path of its receipt."""
    return service.delete_subject(session, collection, subject)
