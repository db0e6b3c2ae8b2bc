"""Start, list and read evaluations, which measure how well a model or a method ranks a collection's faces."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from app.db import examples
from app.db.field_types import Word
from app.deps import Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import point_to_job
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, LARGE_JSON, OPERATOR
from app.deps.scopes import EVALUATION, ROWS
from app.evaluations import service
from app.evaluations.schemas import EvaluationIn, EvaluationsOut, EvaluationStarted, WholeEvaluationOut

router = APIRouter(prefix="/v1/evaluations", tags=["evaluations"], route_class=AnswerRoute)
OfCollection = Annotated[
    Word | None, Query(description="only evaluations of this collection", examples=[examples.COLLECTION])
]
EvaluationId = Annotated[Word, Path(description="an evaluation's id", examples=[examples.EVALUATION])]
STARTS = declare_problems(
    (409, "ExternalDescriptor"), (404, "ResourceNotFound"), (422, "UnknownComponent"), (422, "UnknownTask")
)


@router.post(
    "",
    status_code=202,
    summary="Measure a model",
    openapi_extra={**ADMIN, **ROWS, **LARGE_JSON, **STARTS} | audit_as("evaluation.start"),
)
def start_evaluation(
    body: EvaluationIn, session: WriteDep, resources: ResourcesDep, response: Response
) -> EvaluationStarted:
    """Starts a job that ranks the whole gallery for each query, like an exact search (m = p) without a limit.

    With `training`, a model is fitted for each draw, only on the training side of that draw, and is not stored.
    """
    job, started = service.start_evaluation(session, resources.settings, body)
    point_to_job(response, job)
    return started


@router.get("", summary="List evaluations", openapi_extra=OPERATOR | ROWS)
def list_evaluations(
    session: ReadDep,
    collection: OfCollection = None,
    limit: Limit = 100,
    next_token: NextToken = None,
) -> EvaluationsOut:
    """Evaluations without their reports, the oldest first."""
    evaluations, token = service.list_evaluations(session, collection, limit, next_token)
    return EvaluationsOut(evaluations=evaluations, next_token=token)


@router.get("/{evaluation_id}", summary="Look at an evaluation", openapi_extra=OPERATOR | EVALUATION)
def get_evaluation(evaluation_id: EvaluationId, session: ReadDep) -> WholeEvaluationOut:
    """The evaluation with its report, which is also the result of its job."""
    return service.get_evaluation(session, evaluation_id)
