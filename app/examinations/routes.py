"""Examine a collection for faults."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName
from app.deps import ReadDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.roles import OPERATOR
from app.deps.scopes import COLLECTION
from app.examinations import service
from app.examinations.schemas import ExaminationOut

router = APIRouter(prefix="/v1/collections", tags=["examinations"], route_class=AnswerRoute)

CollectionId = Annotated[CollectionName, Path(alias="collection")]


@router.post(
    "/{collection}:examine",
    status_code=202,
    summary="Examine a collection",
    openapi_extra=OPERATOR | COLLECTION | audit_as("collection.examine"),
)
def examine(collection: CollectionId, session: WriteDep, response: Response) -> JobOut:
    """Starts a job that looks for duplicates, wrong names, mixtures, poor faces, and faces that strangers match.

    It changes nothing. `GET /v1/collections/{collection}/findings` returns its report; the job's result is the report
    without the findings, which name people. If the model is not calibrated, the job fails with `NotCalibrated`.
    """
    return service.start_examination(session, collection, response)


@router.get("/{collection}/findings", summary="What the last examination found", openapi_extra=OPERATOR | COLLECTION)
def get_findings(collection: CollectionId, session: ReadDep) -> ExaminationOut:
    """The report of the last examination, without people who were deleted since or may not be searched for any more.
    404 if there is none, or if its job was deleted as too old."""
    return service.read_report(session, collection)
