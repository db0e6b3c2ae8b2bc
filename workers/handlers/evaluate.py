"""Evaluate a model, or a training method, on a collection's own faces."""

from typing import Any

from app.db.session import reading, writing
from app.db.tables import Evaluation
from app.learning.evaluation_request import EvaluationRequest, make_public_report
from app.queue.messages import Evaluate
from workers.context import JobContext
from workers.evaluating.measurement import measure_by_faces, measure_by_labels
from workers.progress import PROGRESS_STEPS, report_progress, to_json_values


def run_evaluation(message: Evaluate, context: JobContext) -> dict[str, Any]:
    """Measure and store the report: {"evaluation", "report"}. A second run returns the stored report.

    Raises Invalid, NotFound, TooFewPairs, Interrupted.
    """
    with reading(context.resources.database) as session:
        row = session.get_one(Evaluation, message.evaluation)
        report, request = row.report, EvaluationRequest.model_validate(row.request)
    if not report:
        with report_progress(context) as reporter:
            measured = (
                measure_by_labels(context, request)
                if request.protocol == "labels"
                else measure_by_faces(context, request, reporter)
            )
            reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
        subject = {"protocol": request.protocol, "task": request.task, "model": request.model}
        report = to_json_values(subject | measured)
        with writing(context.resources.database) as session:
            session.get_one(Evaluation, message.evaluation).report = report
    return {"evaluation": message.evaluation, "report": make_public_report(report)}
