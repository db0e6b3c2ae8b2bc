"""Train a candidate model: read the data, fit, measure and refit, then keep the model with its report."""

from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.session import snapshot as at_one_moment
from app.db.session import writing
from app.db.tables import Collection, Job, Training
from app.errors import NotFound
from app.learning.descriptor_choice import locate_files
from app.learning.plan import Plan
from app.learning.policy_publication import publish_if_better
from app.queue.messages import POLICY, Train
from workers.context import JobContext
from workers.progress import report_progress, to_json_values
from workers.training.candidate import Candidate
from workers.training.training_data import TrainingData, describe_learned, read_training_data, record_snapshot
from workers.training.training_run import train_candidate
from workers.training.unfinished_models import remove_unfinished_models


def train_model(message: Train, context: JobContext) -> dict[str, Any]:
    """Return {"model", "training", "report"}. A second run ends with the same model.

    Raises TooFewPairs (with how many are missing), CropsDamaged, Interrupted.
    """
    with writing(context.resources.database) as session:
        training = session.get(Training, message.training)
        if training is None:
            raise NotFound(f"no training {message.training}")
        if training.model:
            return _make_result(training.model, training.id, training.report)
        plan = _read_plan(training, context.resources.settings)
        _wait_for_enrolments(session, plan)
        snapshot = record_snapshot(session, training, plan)
    with at_one_moment(context.resources.database) as session:
        data = read_training_data(session, plan, snapshot)
    name = f"m-{training.id}"
    remove_unfinished_models(context, name)
    with report_progress(context, training.id) as reporter:
        candidate = train_candidate(context, plan, data, name, reporter)
    return _keep(context, training.id, data, candidate)


def _read_plan(training: Training, settings: Settings) -> Plan:
    """Read the plan of a training. A refit has that of its model, which may have been made in another home."""
    plan = Plan.model_validate(training.request)
    return plan.model_copy(update={"descriptors": tuple(locate_files(plan.descriptors, settings))})


def _wait_for_enrolments(session: Session, plan: Plan) -> None:
    """Keep faces from being enrolled, and labels from being added, until the snapshot is stored.

    None of these faces is older, and has a later change; none of these labels has a smaller pk than the last one.
    """
    collections = select(Collection.id).where(Collection.id.in_(plan.collections)).order_by(Collection.id)
    session.scalars(collections.with_for_update(read=True)).all()


def _keep(context: JobContext, training_id: str, data: TrainingData, candidate: Candidate) -> dict[str, Any]:
    """Save the holdout model, the model and then the rows, which make the model exist.

    Raises Interrupted where another worker has taken the job over: that one's model is kept.
    """
    resources, report = context.resources, to_json_values(candidate.report)
    learned = {"training": training_id, **describe_learned(data)}
    model = replace(candidate.model, provenance={**candidate.model.provenance, **learned})
    if candidate.holdout_model is not None:
        context.check_lease()
        resources.models.save(candidate.holdout_model)
    with writing(resources.database) as session:
        context.lock_job(session)
        job = session.get_one(Job, context.job_id)
        resources.models.keep(session, model, training_id=training_id, report=report)
        session.flush()
        training = session.get_one(Training, training_id)
        training.model, training.report = model.id, report
        if job.body.get("requested_by") == POLICY:
            publish_if_better(session, training)
    return _make_result(model.id, training_id, report)


def _make_result(model: str, training_id: str, report: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "training": training_id, "report": report}
