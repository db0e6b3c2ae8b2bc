"""People of a gallery."""

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
    responses={200: {"model": SubjectOut, "description": "it was there"}},
)
def put_subject(
    collection: CollectionId, subject: Id, session: WriteDep, response: Response, body: SubjectIn | None = None
) -> SubjectOut:
    """201 where it is new, 200 where it was there. Enrolling a photo under a subject makes it, too."""
    shown, new = service.put(session, collection, subject, body or SubjectIn())
    response.status_code = 201 if new else 200
    return shown


@router.get("", summary="List subjects", openapi_extra=READER)
def list_subjects(
    collection: CollectionId, session: ReadDep, limit: Limit = 100, next_token: NextToken = None
) -> SubjectsOut:
    """By id, each with the number of its faces."""
    return service.listed(session, collection, limit, next_token)


@router.get("/{subject}", summary="Look at a subject", openapi_extra=READER)
def get_subject(collection: CollectionId, subject: Id, session: ReadDep) -> SubjectOut:
    """Who it is; its faces are listed at `/faces?subject=`."""
    return service.shown(session, [subjects.get(session, collection, subject)])[0]


@router.patch("/{subject}", summary="Change a subject", openapi_extra=OPERATOR)
def change_subject(collection: CollectionId, subject: Id, body: SubjectIn, session: WriteDep) -> SubjectOut:
    """What is left out stays as it is."""
    return service.change(session, collection, subject, body)


@router.post("/{subject}:merge", summary="Merge a subject into another", openapi_extra={**OPERATOR})
def merge_subject(collection: CollectionId, subject: Id, body: MergeIn, session: WriteDep) -> SubjectOut:
    """All its faces become the other's, and the name goes. Where both have a metadata field, the other's stays."""
    return service.merge(session, collection, subject, body.into)


@router.delete("/{subject}", summary="Delete a subject", openapi_extra=OPERATOR)
def delete_subject(collection: CollectionId, subject: Id, session: WriteDep) -> ErasedOut:
    """With all its faces, their labels, embeddings, index entries and files: the answer is the receipt."""
    return service.remove(session, collection, subject)
