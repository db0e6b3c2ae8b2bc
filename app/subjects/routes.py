"""Create, list, change, merge and delete the subjects of a collection."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName, SubjectId
from app.deps import Limit, NextToken, ReadDep, WriteDep
from app.deps.roles import OPERATOR, READER
from app.galleries import subjects
from app.subjects import service
from app.subjects.schemas import ErasedOut, MergeIn, SubjectIn, SubjectOut, SubjectsOut

router = APIRouter(prefix="/v1/collections/{collection}/subjects", tags=["subjects"])

CollectionId = Annotated[CollectionName, Path(alias="collection")]
Id = Annotated[SubjectId, Path(alias="subject")]


@router.put(
    "/{subject}",
    status_code=201,
    summary="Make a subject, or change it",
    openapi_extra=OPERATOR,
    responses={200: {"model": SubjectOut, "description": "the subject existed already"}},
)
def put_subject(
    collection: CollectionId, subject: Id, session: WriteDep, response: Response, body: SubjectIn | None = None
) -> SubjectOut:
    """201 if the subject is new, 200 if it existed already. Enrolling a photo under a new subject creates it too."""
    subject_out, new = service.put_subject(session, collection, subject, body or SubjectIn())
    response.status_code = 201 if new else 200
    return subject_out


@router.get("", summary="List subjects", openapi_extra=READER)
def list_subjects(
    collection: CollectionId, session: ReadDep, limit: Limit = 100, next_token: NextToken = None
) -> SubjectsOut:
    """Subjects in the order of their ids, each with the number of its faces."""
    return service.list_subjects(session, collection, limit, next_token)


@router.get("/{subject}", summary="Look at a subject", openapi_extra=READER)
def get_subject(collection: CollectionId, subject: Id, session: ReadDep) -> SubjectOut:
    """The subject. `GET /v1/collections/{collection}/faces?subject=` lists its faces."""
    return service.describe_subjects(session, [subjects.get_subject(session, collection, subject)])[0]


@router.patch("/{subject}", summary="Change a subject", openapi_extra=OPERATOR)
def change_subject(collection: CollectionId, subject: Id, body: SubjectIn, session: WriteDep) -> SubjectOut:
    """Changes the fields in the body. Fields that are left out keep their values."""
    return service.change_subject(session, collection, subject, body)


@router.post("/{subject}:merge", summary="Merge a subject into another", openapi_extra={**OPERATOR})
def merge_subject(collection: CollectionId, subject: Id, body: MergeIn, session: WriteDep) -> SubjectOut:
    """Moves all faces to the other subject and deletes this one. If both have a metadata field, the other's is kept."""
    return service.merge_subjects(session, collection, subject, body.into)


@router.delete("/{subject}", summary="Delete a subject", openapi_extra=OPERATOR)
def delete_subject(collection: CollectionId, subject: Id, session: WriteDep) -> ErasedOut:
    """Deletes the subject with all its faces, their labels, embeddings, index entries and files. The answer says how
    much was deleted."""
    return service.delete_subject(session, collection, subject)
