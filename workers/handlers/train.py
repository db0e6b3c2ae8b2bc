"""A training: what is known at one moment is taken, learned from, measured, and kept as a candidate."""

import shutil
from dataclasses import replace
from typing import Any

from app.db.session import snapshot as at_one_moment
from app.db.session import writing
from app.db.tables import Job, ModelRecord, Training
from app.errors import NotFound
from app.learning.plan import Plan
from app.queue.messages import Train
from app.resources import Resources
from ml.model import save_model
from workers.context import Interrupted, JobContext, Later
from workers.training import training_data
from workers.training.candidate import HELD_OUT, Candidate, learn
from workers.training.progress import plain, telling


def run(message: Train, context: JobContext) -> dict[str, Any]:
    """The result: {"model", "training", "report"}. Run again, it ends with the same model.

    Raises TooFewPairs (says how many are missing), Interrupted, Later.
    """
    with writing(context.resources.database) as session:
        training = session.get(Training, message.training)
        if training is None:
            raise NotFound(f"no training {message.training}")
        if training.model:
            return _result(training.model, training.id, training.report)
        plan = Plan.model_validate(training.request)
        at = training_data.taken(session, training, plan)
    with at_one_moment(context.resources.database) as session:
        taken = training_data.read(session, plan, at)
    name = f"m-{training.id}"
    _forget_half_made(context.resources, name)
    with telling(context, training.id) as told:
        try:
            candidate = learn(context, plan, taken, name, told)
        except NotFound as gone:
            raise _again_if_erased(context, plan, taken, at) from gone
    return _keep(context, training.id, at, candidate)


def _forget_half_made(resources: Resources, name: str) -> None:
    """What a run that was killed has left: no row names it, and this run makes it anew."""
    with at_one_moment(resources.database) as session:
        if session.get(ModelRecord, name) is None:
            for folder in (name, name + HELD_OUT):
                shutil.rmtree(resources.generations.folder / folder, ignore_errors=True)


def _again_if_erased(context: JobContext, plan: Plan, taken: training_data.Snapshot, at: dict[str, Any]) -> Exception:
    """A crop is gone: of a face that was erased meanwhile, then without it once more; else something is broken."""
    with at_one_moment(context.resources.database) as session:
        now = training_data.read(session, plan, at)
    erased = {f.pk for f in (*taken.faces, *taken.distractors)} - {f.pk for f in (*now.faces, *now.distractors)}
    return Later(0.1) if erased else NotFound("the crop of an enrolled face is missing from the store")


def _keep(context: JobContext, training_id: str, at: dict[str, Any], candidate: Candidate) -> dict[str, Any]:
    """The twin's folder, the model's folder, then the rows: at the last of these it is there.

    Raises Interrupted where another worker has the job by now: what is kept is that one's.
    """
    resources, report = context.resources, plain(candidate.report)
    facts = {"training": training_id, "changes": at["changes"], "labels": at["labels"]}
    made = replace(candidate.generation, facts={**candidate.generation.facts, **facts})
    if candidate.twin is not None:
        save_model(candidate.twin, resources.generations.folder)
    with writing(resources.database) as session:
        job = session.get(Job, context.job_id, with_for_update=True)
        if job is None or job.worker != context.worker:
            raise Interrupted
        resources.generations.keep(session, made, training_id=training_id, report=report)
        session.flush()
        training = session.get_one(Training, training_id)
        training.model, training.report = made.id, report
    return _result(made.id, training_id, report)


def _result(model: str, training_id: str, report: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "training": training_id, "report": report}
