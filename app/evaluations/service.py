from sqlalchemy.orm import Session

from app.catalogue.store import list_registered
from app.config import Settings
from app.db.tables import Collection, Deployment, Evaluation, Generation, Job
from app.deps import runs
from app.deps.accepted import JobOut
from app.deps.caller import Caller
from app.errors import Invalid, NotFound
from app.evaluations.schemas import EvaluationIn, EvaluationOut, EvaluationStarted, TrainingSpec, WholeEvaluationOut
from app.queue.messages import Evaluate
from app.queue.queue import enqueue
from ml import registry
from ml.errors import UnknownComponent

POINTERS = ("champion", "challenger", "previous")


def start(session: Session, settings: Settings, caller: Caller, told: EvaluationIn) -> tuple[Job, EvaluationStarted]:
    """Raises Forbidden, NotFound, Invalid, ml.UnknownComponent."""
    caller.check(told.collection)
    if session.get(Collection, told.collection) is None:
        raise NotFound(f"no collection {told.collection!r}")
    if told.training is None:
        told = told.model_copy(update={"model": _model(session, told)})
    else:
        _check(settings, caller, told.training)
    if told.against:
        _comparable(session, caller, told)
    evaluation = Evaluation(request=told.model_dump(mode="json"))
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
    model = session.get(Generation, named)
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


def _check(settings: Settings, caller: Caller, training: TrainingSpec) -> None:
    """What a look can tell; the job checks the options as a training does."""
    if training.method not in registry.names("embedders"):
        raise UnknownComponent("method", training.method, registry.names("embedders"))
    known = {*registry.names("descriptors"), *list_registered(settings)}
    for one in [*training.descriptors, *([training.descriptor] if training.descriptor else [])]:
        name = one if isinstance(one, str) else one.get("name")
        if name not in known:
            raise UnknownComponent("descriptor", str(name), known)
    for source in training.sources:
        if source.get("collection"):
            caller.check(str(source["collection"]))
