from sqlalchemy.orm import Session

from app.config import Settings
from app.db.tables import Collection, Deployment, Evaluation, Job, ModelRecord
from app.deps import runs
from app.deps.caller import Caller
from app.deps.job_response import JobOut
from app.errors import Invalid, NotFound
from app.evaluations.schemas import EvaluationIn, EvaluationOut, EvaluationStarted, WholeEvaluationOut
from app.learning.plan_checks import make_plan
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate

POINTERS = ("champion", "challenger", "previous")


def start(session: Session, settings: Settings, caller: Caller, told: EvaluationIn) -> tuple[Job, EvaluationStarted]:
    """Raises Forbidden, NotFound, Invalid, ml.UnknownComponent."""
    caller.check(told.collection)
    if session.get(Collection, told.collection) is None:
        raise NotFound(f"no collection {told.collection!r}")
    if told.training is None:
        told = told.model_copy(update={"model": _model(session, told)})
    else:
        for source in told.training.sources:
            caller.check(source.collection or told.collection)
        make_plan(session, settings, told.training_request())
    if told.against:
        _comparable(session, caller, told)
    evaluation = Evaluation(request=told.model_dump(mode="json", by_alias=True))
    session.add(evaluation)
    session.flush()
    job = enqueue(session, Evaluate(evaluation=evaluation.id))
    evaluation.job_id = job.id
    return job, EvaluationStarted(**JobOut.of(job).model_dump(), evaluation=evaluation.id)


def get(session: Session, caller: Caller, evaluation: str) -> WholeEvaluationOut:
    row = session.get(Evaluation, evaluation)
    if row is None:
        raise NotFound(f"no evaluation {evaluation!r}")
    caller.check(row.request["collection"])
    return WholeEvaluationOut.of(row, runs.job_of(session, row))


def listed(
    session: Session, caller: Caller, collection: str | None, limit: int, next_token: str | None
) -> tuple[list[EvaluationOut], str | None]:
    """Oldest first; a bound key sees those of its collections alone."""
    found, token = runs.listed(session, Evaluation, caller, collection, limit, next_token)
    return [EvaluationOut.of(*each) for each in found], token


def _model(session: Session, told: EvaluationIn) -> str:
    """The id that is meant now, of a model that serves the task."""
    named = told.model or "champion"
    deployment = session.get(Deployment, (told.collection, told.task))
    if named in POINTERS:
        found = getattr(deployment, named) if deployment else None
        if found is None:
            raise NotFound(f"the task {told.task!r} of {told.collection!r} has no {named}")
        named = found
    model = session.get(ModelRecord, named)
    if model is None:
        raise NotFound(f"no model {named!r}")
    if told.task not in model.manifest["tasks"]:
        raise Invalid(f"model {named} serves {', '.join(model.manifest['tasks'])}, not {told.task}", code="UnknownTask")
    return model.id


def _comparable(session: Session, caller: Caller, told: EvaluationIn) -> None:
    """What a look can tell; the job sees whether the same queries were searched for."""
    row = session.get(Evaluation, told.against)
    if row is None:
        raise NotFound(f"no evaluation {told.against!r} to compare with")
    caller.check(row.request["collection"])
    if not row.report:
        raise Invalid(f"evaluation {told.against} has no report to compare with")
    for name in ("collection", "task", "protocol", "by", "tolerance"):
        if row.request.get(name) != getattr(told, name):
            raise Invalid(f"evaluation {told.against} was of another {name}: {row.request.get(name)}")
