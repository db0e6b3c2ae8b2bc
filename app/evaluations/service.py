"""Start, read and list evaluations."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.config import Settings
from app.db.lookups import get_collection, get_row
from app.db.tables import Evaluation, Job
from app.deps import runs
from app.deps.job_response import JobOut
from app.errors import Invalid, NotFound
from app.evaluations.schemas import EvaluationIn, EvaluationOut, EvaluationStarted, WholeEvaluationOut
from app.evaluations.stored_requests import make_public_request, read_requests
from app.learning.plan_resolution import make_plan
from app.publishing.pointers import resolve_model
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate
from app.storage.audit_log.notes import note_audited

POINTERS = ("champion", "challenger", "previous")


def start_evaluation(session: Session, settings: Settings, request: EvaluationIn) -> tuple[Job, EvaluationStarted]:
    """Store the evaluation and enqueue its job. Raises NotFound, Invalid, ml.UnknownComponent."""
    get_collection(session, request.collection)
    collections: Sequence[str] = [request.collection]
    if request.training is None:
        model = resolve_model(session, request.collection, request.task, request.model or "champion")
        request = request.model_copy(update={"model": model})
    else:
        collections = make_plan(session, settings, request.training_request()).collections
    if request.against:
        _check_comparable(session, request)
    evaluation = Evaluation(request=request.model_dump(mode="json", by_alias=True))
    session.add(evaluation)
    session.flush()
    note_audited(session, collections, f"evaluation:{evaluation.id}")
    job = enqueue(session, Evaluate(evaluation=evaluation.id), reads=collections)
    evaluation.job_id = job.id
    return job, EvaluationStarted(**JobOut.of(job).model_dump(), evaluation=evaluation.id)


def get_evaluation(session: Session, evaluation: str) -> WholeEvaluationOut:
    """Return an evaluation with its report. Raises NotFound."""
    row = get_row(session, "evaluation", evaluation)
    return WholeEvaluationOut.of(row, make_public_request(row.request), runs.get_job_of_run(session, row))


def list_evaluations(
    session: Session, collection: str | None, limit: int, next_token: str | None
) -> tuple[list[EvaluationOut], str | None]:
    """List one page of evaluations, the oldest first. Raises Invalid for a wrong token."""
    rows, token = runs.list_runs(session, Evaluation, collection, limit, next_token, unread=[Evaluation.request])
    requests = read_requests(session, [row.id for row, _ in rows])
    return [EvaluationOut.of(row, requests[row.id], job) for row, job in rows], token


def _check_comparable(session: Session, request: EvaluationIn) -> None:
    """Check that both evaluations are of the same kind; the job checks whether they have the same queries."""
    row = session.get(Evaluation, request.against)
    if row is None:
        raise NotFound(f"no evaluation {request.against!r} to compare with")
    if not row.report:
        raise Invalid(f"evaluation {request.against} has no report to compare with")
    for name in ("collection", "task", "protocol", "by", "tolerance"):
        if row.request.get(name) != getattr(request, name):
            raise Invalid(f"evaluation {request.against} has another {name}: {row.request.get(name)}")
