"""A measurement of a model, or of a way of making one, on a collection's own faces."""

from collections.abc import Callable, Sequence
from typing import Any

from app.db.session import reading, snapshot, writing
from app.db.tables import Evaluation
from app.learning.evaluation_request import EvaluationRequest, public_report
from app.queue.messages import Evaluate
from ml.evaluation.protocols import Protocol
from workers.context import JobContext
from workers.evaluating import comparison, dataset, embeddings, label_agreement, ranking, verification
from workers.evaluating.dataset import Entrants
from workers.evaluating.embeddings import Placed
from workers.training.progress import WHOLE, Telling, plain, telling


def run(message: Evaluate, context: JobContext) -> dict[str, Any]:
    """The result: {"evaluation", "report"}. Run again after its end, it only says so.

    Raises Invalid, NotFound, TooFewPairs, Interrupted.
    """
    with reading(context.resources.database) as session:
        row = session.get_one(Evaluation, message.evaluation)
        report, asked = row.report, EvaluationRequest.model_validate(row.request)
    if not report:
        with telling(context) as told:
            made = _by_labels(context, asked) if asked.protocol == "labels" else _by_faces(context, asked, told)
            told.phase("done", WHOLE, WHOLE)(1, 1, {})
        report = plain({"protocol": asked.protocol, "task": asked.task, "model": asked.model} | made)
        with writing(context.resources.database) as session:
            session.get_one(Evaluation, message.evaluation).report = report
    return {"evaluation": message.evaluation, "report": public_report(report)}


def _by_labels(context: JobContext, asked: EvaluationRequest) -> dict[str, Any]:
    generation = context.resources.generations.get(str(asked.model))
    with snapshot(context.resources.database) as session:
        said = label_agreement.settled_here(session, asked.collection, asked.task)
        faces = label_agreement.faces_of(session, said)
        session.expunge_all()
    rows = embeddings.stored(context, generation, asked.task, faces)
    return label_agreement.judged(said, faces, rows, generation, asked.task)


def _by_faces(context: JobContext, asked: EvaluationRequest, told: Telling) -> dict[str, Any]:
    with snapshot(context.resources.database) as session:
        taking_part = dataset.read(session, asked)
        against = session.get_one(Evaluation, asked.against).report if asked.against else None
    protocols = dataset.drawn(asked, taking_part)
    if asked.protocol == "verification":
        made = _by_pairs(context, asked, taking_part, protocols, told)
    else:
        made = ranking.judged(asked.task, taking_part, protocols, _placed(context, asked, taking_part, protocols, told))
    if against is not None:
        made["against"] = {"evaluation": asked.against, "difference": comparison.compared(made, against)}
    return made | {"faces": len(taking_part.gallery), "distractors": len(taking_part.distractors)}


def _by_pairs(
    context: JobContext, asked: EvaluationRequest, taking_part: Entrants, protocols: Sequence[Protocol], told: Telling
) -> dict[str, Any]:
    faces, people = taking_part.faces, taking_part.people
    if asked.training is None:
        once = embeddings.of_model(context, asked, taking_part)
        return verification.judged(faces, people, protocols, lambda fold: once, None)
    learned = verification.Learned(protocols, embeddings.Bench(context, asked, taking_part, told).fitted)
    return verification.judged(faces, people, protocols, learned.placed, learned.judge)


def _placed(
    context: JobContext, asked: EvaluationRequest, taking_part: Entrants, protocols: Sequence[Protocol], told: Telling
) -> Callable[[int], Placed]:
    """Where the faces lie in each draw: once for all under a model that there is, else as its training side teaches."""
    if asked.training is None:
        once = embeddings.of_model(context, asked, taking_part)
        return lambda draw: once
    bench = embeddings.Bench(context, asked, taking_part, told)
    return lambda draw: bench.fitted(protocols[draw], draw, len(protocols))
