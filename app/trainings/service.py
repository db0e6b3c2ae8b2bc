"""Start, read and list trainings."""

from typing import Literal

from sqlalchemy.orm import Session

from app.config import Settings
from app.db import lookups
from app.db.tables import Job, Training
from app.deps import runs
from app.deps.job_response import JobOut
from app.learning import training_policy
from app.learning.plan_resolution import make_plan
from app.storage.audit_log.notes import note_audited
from app.trainings.schemas import TrainingIn, TrainingOut, TrainingStarted, WholeTrainingOut


def start_training(session: Session, settings: Settings, request: TrainingIn) -> tuple[Job, TrainingStarted]:
    """Start a training. Trainings of one collection run one after the other.

    Raises NotFound, Invalid, ml.UnknownComponent.
    """
    plan = make_plan(session, settings, request)
    training = training_policy.start_training(session, plan)
    note_audited(session, plan.collections, f"training:{training.id}")
    job = session.get_one(Job, training.job_id)
    return job, TrainingStarted(**JobOut.of(job).model_dump(), training=training.id)


def get_training(session: Session, training_id: str) -> WholeTrainingOut:
    """Return a training with its curve and report. Raises NotFound."""
    training = lookups.get_row(session, "training", training_id)
    return WholeTrainingOut.of(training, runs.get_job_of_run(session, training))


def list_trainings(
    session: Session,
    collection: str | None,
    limit: int,
    next_token: str | None,
    order: Literal["oldest", "newest"],
) -> tuple[list[TrainingOut], str | None]:
    """List one page of trainings. Raises Invalid for a wrong token."""
    rows, token = runs.list_runs(session, Training, collection, limit, next_token, order)
    return [TrainingOut.of(*pair) for pair in rows], token
