"""Measure an evaluation by labels, by ranking or by verification."""

from typing import Any

from app.db.session import snapshot as at_one_moment
from app.db.tables import Evaluation
from app.learning.evaluation_request import EvaluationRequest
from workers.context import JobContext
from workers.evaluating import comparison, dataset, embeddings, label_agreement, ranking, verification
from workers.evaluating.dataset import EvaluationSet
from workers.evaluating.embeddings import GalleryEmbeddings
from workers.evaluating.verification import FitProtocol
from workers.progress import ProgressReporter


def measure_by_labels(context: JobContext, request: EvaluationRequest) -> dict[str, Any]:
    """Report how well the requested model agrees with the labels. Raises Invalid, NotFound, Interrupted."""
    model = context.resources.models.get(str(request.model))
    with at_one_moment(context.resources.database) as session:
        consensus = label_agreement.read_collection_consensus(session, request.collection, request.task)
        faces = label_agreement.list_faces(session, consensus)
        session.expunge_all()
    rows = embeddings.read_embeddings(context, model, request.task, faces)
    return label_agreement.measure_label_agreement(consensus, faces, rows, model, request.task)


def measure_by_faces(context: JobContext, request: EvaluationRequest, reporter: ProgressReporter) -> dict[str, Any]:
    """Report rankings or verification of the collection's faces, and the difference from an earlier evaluation.

    Raises Invalid, NotFound, TooFewPairs, Interrupted.
    """
    with at_one_moment(context.resources.database) as session:
        evaluation_set = dataset.read_evaluation_set(session, request)
        against = session.get_one(Evaluation, request.against).report if request.against else None
    protocols = dataset.make_protocols(request, evaluation_set)
    fit_draw = _make_fit(context, request, evaluation_set, reporter)
    if request.protocol == "verification":
        fold_fits = verification.FoldFits(protocols, fit_draw)
        judge = fold_fits.judge if request.training is not None else None
        faces, people = evaluation_set.faces, evaluation_set.people
        report = verification.measure_verification(faces, people, protocols, fold_fits.embed_fold, judge)
    else:

        def embed_draw(draw: int) -> GalleryEmbeddings:
            return fit_draw(protocols[draw], draw, len(protocols))

        report = ranking.measure_ranking(request.task, evaluation_set, protocols, embed_draw)
    if against is not None:
        difference = comparison.compare_reports(report, against)
        report["against"] = {"evaluation": request.against, "difference": difference}
    return report | {"faces": len(evaluation_set.gallery), "distractors": len(evaluation_set.distractors)}


def _make_fit(
    context: JobContext, request: EvaluationRequest, evaluation_set: EvaluationSet, reporter: ProgressReporter
) -> FitProtocol:
    """Return a function that embeds the gallery for a draw.

    It fits the requested training on the draw's training side. With a requested model it returns the same embeddings
    for every draw.
    """
    if request.training is not None:
        return embeddings.DrawFitter(context, request, evaluation_set, reporter).fit_draw
    gallery = embeddings.embed_with_model(context, request, evaluation_set)
    return lambda protocol, draw, draws: gallery
