"""Start, list and read trainings, which learn a metric from labels, subjects and metadata."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from app.db import examples
from app.db.field_types import Word
from app.deps import Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import point_to_job
from app.deps.paging import Order
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, LARGE_JSON, OPERATOR
from app.deps.scopes import ROWS, TRAINING
from app.trainings import service
from app.trainings.schemas import TrainingIn, TrainingsOut, TrainingStarted, WholeTrainingOut

router = APIRouter(prefix="/v1/trainings", tags=["trainings"], route_class=AnswerRoute)
OfCollection = Annotated[
    Word | None, Query(description="only trainings of this collection", examples=[examples.COLLECTION])
]
TrainingId = Annotated[Word, Path(description="a training's id", examples=[examples.TRAINING])]
STARTS = declare_problems(
    (409, "ExternalDescriptor"),
    (404, "ResourceNotFound"),
    (409, "NotInstalled"),
    (422, "UnknownComponent"),
    (422, "UnknownTask"),
    (422, "TaskDisabled"),
    (503, "ModelUnavailable"),
)


@router.post(
    "",
    status_code=202,
    summary="Learn a metric",
    openapi_extra={**ADMIN, **ROWS, **LARGE_JSON, **STARTS} | audit_as("training.start"),
)
def start_training(body: TrainingIn, session: WriteDep, resources: ResourcesDep, response: Response) -> TrainingStarted:
    """Starts a job that learns from the current data, measures the result on held-out people, and learns once more from
    everybody. Its candidate serves only after it is published. To cancel a training, cancel its job."""
    job, started = service.start_training(session, resources.settings, body)
    point_to_job(response, job)
    return started


@router.get("", summary="List trainings", openapi_extra=OPERATOR | ROWS)
def list_trainings(
    session: ReadDep,
    collection: OfCollection = None,
    order: Order = "oldest",
    limit: Limit = 100,
    next_token: NextToken = None,
) -> TrainingsOut:
    """Trainings without their curves and reports, the oldest first unless `order` is `newest`."""
    trainings, token = service.list_trainings(session, collection, limit, next_token, order)
    return TrainingsOut(trainings=trainings, next_token=token)


@router.get("/{training_id}", summary="Look at a training", openapi_extra=OPERATOR | TRAINING)
def get_training(training_id: TrainingId, session: ReadDep) -> WholeTrainingOut:
    """The training with its learning curve so far and, at the end, its report and its candidate."""
    return service.get_training(session, training_id)
