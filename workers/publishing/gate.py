"""The gate of a publication: compare the candidate with the serving model on people whom neither has learned from."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Collection, Deployment, Face, Job, ModelRecord
from app.errors import AppError, Busy, Conflict
from app.queue.jobs import LIVE_STATES
from app.queue.messages import ImportArchive, ImportEmbeddings, Publish
from app.serving.calibration.schedule import RECALIBRATION_CHANGE_RATIO
from ml.errors import LikenessError
from ml.evaluation.comparisons.gate_rule import judge
from ml.evaluation.comparisons.models import ModelComparison
from workers.context import JobContext
from workers.progress import to_json_values
from workers.publishing.model_comparison import measure_models

log = logging.getLogger("likeness.gate")

MIN_FACES_TO_GATE = 10
"""A collection with fewer gallery faces serves nobody yet, and nothing could be measured: any model may pass."""


@dataclass(frozen=True)
class TaskJudgement:
    """The judgement of one task. reasons: harm that is shown; unclear: what is not measured; measured: the record."""

    reasons: tuple[str, ...]
    unclear: tuple[str, ...]
    measured: Mapping[str, Any]


def judge_publication(context: JobContext, message: Publish, champions: Mapping[str, str | None]) -> dict[str, Any]:
    """Return {"passed", "reasons", "compared_with": {task: model}, "measured": {task: figures, or why there are none}}.

    Raises Interrupted, and unless the message overrides the gate: Conflict with the code GateRefused where harm is
    shown, or NotMeasured where nothing shows that there is none, each with its `reasons`.
    """
    judgements: dict[str, TaskJudgement] = {}
    for task in message.tasks if message.pointer == "champion" else ():
        if champions[task] != message.model:
            judgements[task] = _judge_task(context, message, task, champions[task])
    prefixes = {task: f"{task}: " if len(message.tasks) > 1 else "" for task in judgements}
    reasons = [prefixes[task] + reason for task, judgement in judgements.items() for reason in judgement.reasons]
    unclear = [prefixes[task] + reason for task, judgement in judgements.items() for reason in judgement.unclear]
    verdict = {
        "passed": not reasons and not unclear,
        "reasons": reasons + unclear,
        "compared_with": {
            t: champions[t] for t, judgement in judgements.items() if "unmeasured" not in judgement.measured
        },
        "measured": {task: dict(judgement.measured) for task, judgement in judgements.items()},
    }
    if not verdict["passed"] and not message.override:
        raise _make_refusal(message, reasons, unclear, verdict)
    return verdict


def make_not_measured(what: str, evidence: Mapping[str, Any]) -> Conflict:
    """Return the problem NotMeasured, which says what evidence is missing."""
    return Conflict(f"{what}: {describe_missing_evidence(evidence)}", code="NotMeasured", evidence=dict(evidence))


def describe_missing_evidence(evidence: Mapping[str, Any]) -> str:
    """Say in a sentence what a collection would need to measure two models."""
    people, unseen, needed = (evidence[name] for name in ("people", "unseen_people", "needed_people"))
    text = f"{people:,} people of {evidence['collection']} have what a search needs (two photos or more)"
    seen = [f"{model} has learned from {count:,} of them" for model, count in evidence["seen_people"].items() if count]
    text += f"; {', '.join(seen)}, which leaves {unseen:,}" if seen else ""
    text += f"; {needed:,} are needed"
    if evidence["needed_pairs_of_a_kind"] is not None:
        pairs, kind = evidence["labelled_pairs"], evidence["needed_pairs_of_a_kind"]
        text += f", or {kind:,} labelled pairs of each kind: there are {pairs['same']:,} the same"
        text += f" and {pairs['different']:,} not"
    text += ". Name or label more people, or publish with `override` and a `reason`"
    return text + ("; a training with a `holdout` leaves people to judge by" if seen else "")


def _make_refusal(
    message: Publish, reasons: Iterable[str], unclear: Iterable[str], verdict: dict[str, Any]
) -> Conflict:
    shown = list(reasons)
    extra = {"compared_with": verdict["compared_with"], "measured": verdict["measured"]}
    if shown:
        detail = f"the gate keeps {message.model} from being published: {'; '.join(shown)}"
        return Conflict(detail, code="GateRefused", reasons=verdict["reasons"], **extra)
    detail = f"nothing shows that {message.model} does no harm here: {'; '.join(unclear)}"
    return Conflict(detail, code="NotMeasured", reasons=verdict["reasons"], **extra)


def _judge_task(context: JobContext, message: Publish, task: str, champion: str | None) -> TaskJudgement:
    with reading(context.resources.database) as session:
        excused = _find_excuse(session, message, task)
        reported = None if excused else _read_report(session, message, task, champion)
    if excused:
        return TaskJudgement((), (), {"unmeasured": excused})
    if reported is not None and not judge(reported).unclear:
        return _judge_comparison(reported, {"by": "the report of its training"})
    models = [message.model] if champion is None else [champion, message.model]
    try:
        measurement = measure_models(context, message.collection, task, models)
    except Busy:
        raise
    except (AppError, LikenessError) as error:
        log.warning("gate.cannot_measure model=%s champion=%s error=%s", message.model, champion, error)
        return TaskJudgement((), (f"it cannot be measured: {error}",), {"unmeasured": str(error)})
    if measurement.comparison is None:
        why = describe_missing_evidence(measurement.evidence)
        with reading(context.resources.database) as session:
            why += "; an import is running: try again when it has ended" * _is_import_running(
                session, message.collection
            )
        return TaskJudgement((), (why,), {"unmeasured": why, "measured_on": measurement.evidence})
    return _judge_comparison(
        measurement.comparison,
        {"by": "this publication", "measured_as": list(measurement.models), "measured_on": measurement.evidence},
    )


def _judge_comparison(comparison: ModelComparison, origin: Mapping[str, Any]) -> TaskJudgement:
    verdict = judge(comparison)
    return TaskJudgement(verdict.reasons, verdict.unclear, to_json_values(asdict(comparison)) | dict(origin))


def _find_excuse(session: Session, message: Publish, task: str) -> str:
    """Return why no gate is needed; empty where one is."""
    deployment = session.get(Deployment, (message.collection, task))
    if deployment is not None and deployment.previous == message.model and message.model in deployment.measurements:
        return "it served here before"
    faces = _count_gallery_faces(session, message.collection)
    if faces < MIN_FACES_TO_GATE and not _is_import_running(session, message.collection):
        return f"the collection has {faces} faces, too few to measure anything or to serve anybody"
    return ""


def _is_import_running(session: Session, collection: str) -> bool:
    """Whether an import is adding faces: the collection will be larger when the model serves it."""
    running = (
        Job.kind.in_((ImportArchive.kind, ImportEmbeddings.kind)),
        Job.state.in_(LIVE_STATES),
        Job.body["collection"].as_string() == collection,
    )
    return session.scalar(select(Job.id).where(*running).limit(1)) is not None


def _read_report(session: Session, message: Publish, task: str, champion: str | None) -> ModelComparison | None:
    """Return the comparison in the report of the model's training, or None where it does not apply.

    It applies to the same collection (not a later one of the same id) and the same champion, if the collection has
    about as many faces as it had then.
    """
    model = session.get(ModelRecord, message.model)
    reported = model.report.get("tasks", {}).get(task, {}).get("comparison") if model else None
    if (
        model is None
        or not reported
        or (reported["collection"], reported["champion"]) != (message.collection, champion)
    ):
        return None
    if not _is_same_collection(session, message.collection, model, reported.get("collection_created_at")):
        return None
    faces = _count_gallery_faces(session, message.collection)
    if abs(faces - reported["faces"]) > RECALIBRATION_CHANGE_RATIO * reported["faces"]:
        return None
    return ModelComparison.from_dict(reported["comparison"])


def _is_same_collection(session: Session, collection: str, model: ModelRecord, created_at: float | None) -> bool:
    """Whether the collection is the one that the model was measured on, created at that time (None: not recorded)."""
    row = session.get(Collection, collection)
    if row is None:
        return False
    return row.created_at == created_at if created_at is not None else row.created_at <= model.created_at


def _count_gallery_faces(session: Session, collection: str) -> int:
    here = Face.collection_id == collection, Face.role == "gallery"
    return session.scalar(select(func.count()).select_from(Face).where(*here)) or 0
