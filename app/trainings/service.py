"""Start, read and list trainings."""

from typing import Literal

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Job, Training
from app.deps import runs
from app.deps.caller import Caller
from app.deps.job_response import JobOut
from app.errors import NotFound
from app.learning.plan_resolution import make_plan
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.trainings.schemas import TrainingIn, TrainingOut, TrainingStarted, WholeTrainingOut


def start_training(
    session: Session, settings: Settings, caller: Caller, request: TrainingIn
) -> tuple[Job, TrainingStarted]:
    """Store the training and enqueue its job. Trainings of one collection run one after the other.

    Raises Forbidden, NotFound, Invalid, ml.UnknownComponent.
    """
    for collection in {request.collection, *(s.collection for s in request.sources if s.collection)}:
        caller.check(collection)
    plan = make_plan(session, settings, request)
    training = Training(request=plan.model_dump(mode="json", by_alias=True))
    session.add(training)
    session.flush()
    job = enqueue(session, Train(training=training.id, collection=plan.collection))
    training.job_id = job.id
    return job, TrainingStarted(**JobOut.of(job).model_dump(), training=training.id)


def get_training(session: Session, caller: Caller, training_id: str) -> WholeTrainingOut:
    """Return a training with its curve and report. Raises NotFound, Forbidden."""
    training = session.get(Training, training_id)
    if training is None:
        raise NotFound(f"no training {training_id}")
    caller.check(training.request["collection"])
    return WholeTrainingOut.of(training, runs.get_job_of_run(session, training))


def list_trainings(
    session: Session,
    caller: Caller,
    collection: str | None,
    limit: int,
    next_token: str | None,
    order: Literal["oldest", "newest"],
) -> tuple[list[TrainingOut], str | None]:
    """List trainings; a key that is bound to collections sees only theirs."""
    rows, token = runs.list_runs(session, Training, caller, collection, limit, next_token, order)
    return [TrainingOut.of(*pair) for pair in rows], token
