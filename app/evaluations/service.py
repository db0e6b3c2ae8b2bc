"""Start, read and list evaluations."""

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.lookups import get_collection
from app.db.tables import Evaluation, Job
from app.deps import runs
from app.deps.caller import Caller
from app.deps.job_response import JobOut
from app.errors import Invalid, NotFound
from app.evaluations.schemas import EvaluationIn, EvaluationOut, EvaluationStarted, WholeEvaluationOut
from app.learning.plan_resolution import make_plan
from app.publishing.pointers import resolve_model
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate

POINTERS = ("champion", "challenger", "previous")


def start_evaluation(
    session: Session, settings: Settings, caller: Caller, request: EvaluationIn
) -> tuple[Job, EvaluationStarted]:
    """Store the evaluation and enqueue its job. Raises Forbidden, NotFound, Invalid, ml.UnknownComponent."""
    caller.check(request.collection)
    get_collection(session, request.collection)
    if request.training is None:
        model = resolve_model(session, request.collection, request.task, request.model or "champion")
        request = request.model_copy(update={"model": model})
    else:
        for source in request.training.sources:
            caller.check(source.collection or request.collection)
        make_plan(session, settings, request.training_request())
    if request.against:
        _check_comparable(session, caller, request)
    evaluation = Evaluation(request=request.model_dump(mode="json", by_alias=True))
    session.add(evaluation)
    session.flush()
    job = enqueue(session, Evaluate(evaluation=evaluation.id))
    evaluation.job_id = job.id
    return job, EvaluationStarted(**JobOut.of(job).model_dump(), evaluation=evaluation.id)


def get_evaluation(session: Session, caller: Caller, evaluation: str) -> WholeEvaluationOut:
    """Return an evaluation with its report. Raises NotFound, Forbidden."""
    row = session.get(Evaluation, evaluation)
    if row is None:
        raise NotFound(f"no evaluation {evaluation!r}")
    caller.check(row.request["collection"])
    return WholeEvaluationOut.of(row, runs.get_job_of_run(session, row))


def list_evaluations(
    session: Session, caller: Caller, collection: str | None, limit: int, next_token: str | None
) -> tuple[list[EvaluationOut], str | None]:
    """List evaluations, the oldest first; a key that is bound to collections sees only theirs."""
    rows, token = runs.list_runs(session, Evaluation, caller, collection, limit, next_token)
    return [EvaluationOut.of(*pair) for pair in rows], token


def _check_comparable(session: Session, caller: Caller, request: EvaluationIn) -> None:
    """Check that both evaluations are of the same kind; the job checks whether they have the same queries."""
    row = session.get(Evaluation, request.against)
    if row is None:
        raise NotFound(f"no evaluation {request.against!r} to compare with")
    caller.check(row.request["collection"])
    if not row.report:
        raise Invalid(f"evaluation {request.against} has no report to compare with")
    for name in ("collection", "task", "protocol", "by", "tolerance"):
        if row.request.get(name) != getattr(request, name):
            raise Invalid(f"evaluation {request.against} has another {name}: {row.request.get(name)}")
