"""Evaluate a model, or a training method, on a collection's own faces."""

from collections.abc import Callable, Sequence
from typing import Any

from app.db.session import reading, snapshot, writing
from app.db.tables import Evaluation
from app.learning.evaluation_request import EvaluationRequest, make_public_report
from app.queue.messages import Evaluate
from ml.evaluation.protocols import Protocol
from workers.context import JobContext
from workers.evaluating import comparison, dataset, embeddings, label_agreement, ranking, verification
from workers.evaluating.dataset import EvaluationSet
from workers.evaluating.embeddings import GalleryEmbeddings
from workers.progress import PROGRESS_STEPS, ProgressReporter, report_progress, to_json_values


def run_evaluation(message: Evaluate, context: JobContext) -> dict[str, Any]:
    """Measure and store the report: {"evaluation", "report"}. A second run returns the stored report.

    Raises Invalid, NotFound, TooFewPairs, Interrupted.
    """
    with reading(context.resources.database) as session:
        row = session.get_one(Evaluation, message.evaluation)
        report, request = row.report, EvaluationRequest.model_validate(row.request)
    if not report:
        with report_progress(context) as reporter:
            report_part = (
                _measure_by_labels(context, request)
                if request.protocol == "labels"
                else _measure_by_faces(context, request, reporter)
            )
            reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
        report = to_json_values(
            {"protocol": request.protocol, "task": request.task, "model": request.model} | report_part
        )
        with writing(context.resources.database) as session:
            session.get_one(Evaluation, message.evaluation).report = report
    return {"evaluation": message.evaluation, "report": make_public_report(report)}


def _measure_by_labels(context: JobContext, request: EvaluationRequest) -> dict[str, Any]:
    model = context.resources.models.get(str(request.model))
    with snapshot(context.resources.database) as session:
        consensus = label_agreement.read_collection_consensus(session, request.collection, request.task)
        faces = label_agreement.list_faces(session, consensus)
        session.expunge_all()
    rows = embeddings.read_embeddings(context, model, request.task, faces)
    return label_agreement.measure_label_agreement(consensus, faces, rows, model, request.task)


def _measure_by_faces(context: JobContext, request: EvaluationRequest, reporter: ProgressReporter) -> dict[str, Any]:
    with snapshot(context.resources.database) as session:
        evaluation_set = dataset.read_evaluation_set(session, request)
        against = session.get_one(Evaluation, request.against).report if request.against else None
    protocols = dataset.make_protocols(request, evaluation_set)
    if request.protocol == "verification":
        report_part = _measure_by_pairs(context, request, evaluation_set, protocols, reporter)
    else:
        report_part = ranking.measure_ranking(
            request.task, evaluation_set, protocols, _embed_draws(context, request, evaluation_set, protocols, reporter)
        )
    if against is not None:
        report_part["against"] = {
            "evaluation": request.against,
            "difference": comparison.compare_reports(report_part, against),
        }
    return report_part | {"faces": len(evaluation_set.gallery), "distractors": len(evaluation_set.distractors)}


def _measure_by_pairs(
    context: JobContext,
    request: EvaluationRequest,
    evaluation_set: EvaluationSet,
    protocols: Sequence[Protocol],
    reporter: ProgressReporter,
) -> dict[str, Any]:
    faces, people = evaluation_set.faces, evaluation_set.people
    if request.training is None:
        gallery = embeddings.embed_with_model(context, request, evaluation_set)
        return verification.measure_verification(faces, people, protocols, lambda fold: gallery, None)
    fold_fits = verification.FoldFits(
        protocols, embeddings.DrawFitter(context, request, evaluation_set, reporter).fit_draw
    )
    return verification.measure_verification(faces, people, protocols, fold_fits.embed_fold, fold_fits.judge)


def _embed_draws(
    context: JobContext,
    request: EvaluationRequest,
    evaluation_set: EvaluationSet,
    protocols: Sequence[Protocol],
    reporter: ProgressReporter,
) -> Callable[[int], GalleryEmbeddings]:
    """Return a function that embeds the gallery for a draw, with the requested model or one fitted for the draw."""
    if request.training is None:
        gallery = embeddings.embed_with_model(context, request, evaluation_set)
        return lambda draw: gallery
    fitter = embeddings.DrawFitter(context, request, evaluation_set, reporter)
    return lambda draw: fitter.fit_draw(protocols[draw], draw, len(protocols))
