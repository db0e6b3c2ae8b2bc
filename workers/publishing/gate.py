"""The gate before a publish: the candidate against what serves, on people of the collection whom neither knows."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Deployment, Face, Job, ModelRecord
from app.errors import AppError, Busy, Conflict
from app.queue.jobs import LIVE
from app.queue.messages import ImportArchive, Publish
from app.serving.gallery_calibration import RECALIBRATION_CHANGE_RATIO
from ml.errors import LikenessError
from ml.evaluation.comparisons.gate import judge
from ml.evaluation.comparisons.models import ModelComparison
from workers.context import JobContext
from workers.publishing.model_comparison import measure
from workers.training.progress import plain

log = logging.getLogger("likeness.gate")

FEW_FACES = 10
"""Below so many gallery faces nothing is served in earnest, and nothing could be measured: any model is taken."""


@dataclass(frozen=True)
class Judgement:
    """Of one task. reasons: harm that is shown; unclear: what is not measured; measured: for the record."""

    reasons: tuple[str, ...]
    unclear: tuple[str, ...]
    measured: Mapping[str, Any]


def judged(context: JobContext, message: Publish, champions: Mapping[str, str | None]) -> dict[str, Any]:
    """{"passed", "reasons", "compared_with": {task: model}, "measured": {task: what was measured, or why nothing}}.

    Raises Conflict: GateRefused where harm is shown, NotMeasured where nothing shows that there is none, each with its
    `reasons`; neither where it is overridden. Raises Interrupted.
    """
    judgements: dict[str, Judgement] = {}
    for task in message.tasks if message.pointer == "champion" else ():
        if champions[task] != message.model:
            judgements[task] = _judgement(context, message, task, champions[task])
    where = {task: f"{task}: " if len(message.tasks) > 1 else "" for task in judgements}
    reasons = [where[task] + reason for task, found in judgements.items() for reason in found.reasons]
    unclear = [where[task] + reason for task, found in judgements.items() for reason in found.unclear]
    verdict = {
        "passed": not reasons and not unclear,
        "reasons": reasons + unclear,
        "compared_with": {t: champions[t] for t, found in judgements.items() if "unmeasured" not in found.measured},
        "measured": {task: dict(found.measured) for task, found in judgements.items()},
    }
    if not verdict["passed"] and not message.override:
        raise _refusal(message, reasons, unclear, verdict)
    return verdict


def not_measured(what: str, evidence: Mapping[str, Any]) -> Conflict:
    """The problem where too little is known: says what is missing."""
    return Conflict(f"{what}: {missing(evidence)}", code="NotMeasured", evidence=dict(evidence))


def missing(evidence: Mapping[str, Any]) -> str:
    """What a collection would need to measure two models, as a sentence."""
    people, unseen, needed = (evidence[name] for name in ("people", "unseen_people", "needed_people"))
    told = f"{people:,} people of {evidence['collection']} have what a search needs (two photos or more)"
    seen = [f"{model} has learned from {count:,} of them" for model, count in evidence["seen_people"].items() if count]
    told += f"; {', '.join(seen)}, which leaves {unseen:,}" if seen else ""
    told += f"; {needed:,} are needed"
    if evidence["needed_pairs_of_a_kind"] is not None:
        pairs, kind = evidence["labelled_pairs"], evidence["needed_pairs_of_a_kind"]
        told += f", or {kind:,} labelled pairs of each kind: there are {pairs['same']:,} the same"
        told += f" and {pairs['different']:,} not"
    told += ". Name or label more people, or publish with `override` and a `reason`"
    return told + ("; a training with a `holdout` leaves people to judge by" if seen else "")


def _refusal(message: Publish, reasons: Iterable[str], unclear: Iterable[str], verdict: dict[str, Any]) -> Conflict:
    shown = list(reasons)
    extra = {"compared_with": verdict["compared_with"], "measured": verdict["measured"]}
    if shown:
        detail = f"the gate keeps {message.model} from being published: {'; '.join(shown)}"
        return Conflict(detail, code="GateRefused", reasons=verdict["reasons"], **extra)
    detail = f"nothing shows that {message.model} does no harm here: {'; '.join(unclear)}"
    return Conflict(detail, code="NotMeasured", reasons=verdict["reasons"], **extra)


def _judgement(context: JobContext, message: Publish, task: str, champion: str | None) -> Judgement:
    with reading(context.resources.database) as session:
        excused = _excused(session, message, task)
        reported = None if excused else _reported(session, message, task, champion)
    if excused:
        return Judgement((), (), {"unmeasured": excused})
    if reported is not None and not judge(reported).unclear:
        return _of(reported, {"by": "the report of its training"})
    models = [message.model] if champion is None else [champion, message.model]
    try:
        found = measure(context, message.collection, task, models)
    except Busy:
        raise
    except (AppError, LikenessError) as error:
        log.warning("gate.cannot_measure model=%s champion=%s error=%s", message.model, champion, error)
        return Judgement((), (f"it cannot be measured: {error}",), {"unmeasured": str(error)})
    if found.comparison is None:
        why = missing(found.evidence)
        with reading(context.resources.database) as session:
            why += "; an import is running: try again when it has ended" * _import_runs(session, message.collection)
        return Judgement((), (why,), {"unmeasured": why, "measured_on": found.evidence})
    return _of(
        found.comparison, {"by": "this publication", "measured_as": list(found.models), "measured_on": found.evidence}
    )


def _of(comparison: ModelComparison, told: Mapping[str, Any]) -> Judgement:
    verdict = judge(comparison)
    return Judgement(verdict.reasons, verdict.unclear, plain(asdict(comparison)) | dict(told))


def _excused(session: Session, message: Publish, task: str) -> str:
    """Why no gate is needed; empty where one is."""
    deployment = session.get(Deployment, (message.collection, task))
    if deployment is not None and deployment.previous == message.model and message.model in deployment.measurements:
        return "it served here before"
    faces = _gallery_faces(session, message.collection)
    if faces < FEW_FACES and not _import_runs(session, message.collection):
        return f"the collection has {faces} faces, too few to measure anything or to serve anybody"
    return ""


def _import_runs(session: Session, collection: str) -> bool:
    """Whether faces are on their way: the collection will be larger when the model serves it."""
    begun = Job.kind == ImportArchive.kind, Job.state.in_(LIVE), Job.body["collection"].as_string() == collection
    return session.scalar(select(Job.id).where(*begun).limit(1)) is not None


def _reported(session: Session, message: Publish, task: str, champion: str | None) -> ModelComparison | None:
    """What the report of the model's training says, if it is of this collection and champion and of such faces as are
    there now."""
    model = session.get(ModelRecord, message.model)
    told = model.report.get("tasks", {}).get(task, {}).get("comparison") if model else None
    if not told or (told["collection"], told["champion"]) != (message.collection, champion):
        return None
    faces = _gallery_faces(session, message.collection)
    if abs(faces - told["faces"]) > RECALIBRATION_CHANGE_RATIO * told["faces"]:
        return None
    return ModelComparison.from_dict(told["comparison"])


def _gallery_faces(session: Session, collection: str) -> int:
    here = Face.collection_id == collection, Face.role == "gallery"
    return session.scalar(select(func.count()).select_from(Face).where(*here)) or 0
