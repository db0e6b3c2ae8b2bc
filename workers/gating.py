"""The gate before a publish: the report of a model's training against that of what serves."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from app.db.tables import Generation
from app.engine import pointers
from app.errors import Conflict
from app.queue.messages import Publish
from ml.evaluation.gate import judge
from ml.evaluation.records import Report


def judged(session: Session, message: Publish, champions: Mapping[str, str | None]) -> dict[str, Any]:
    """{"passed", "reasons", "compared_with": {task: model}}. A model without a report passes: nobody was held out.

    Raises Conflict GateRefused with the reasons, unless it is overridden; NotFound, Conflict (archived).
    """
    model = pointers.usable(session, message.model)
    reasons, compared = [], {}
    for task in message.tasks if message.pointer == "champion" else ():
        told = _of(model, task)
        if told.get("candidate") is None or champions[task] == message.model:
            continue
        candidate = Report.from_dict(told["candidate"])
        current, compared[task] = _current(session, told, candidate, task, champions[task])
        where = f"{task}: " if len(message.tasks) > 1 else ""
        reasons += [where + reason for reason in judge(candidate, current).reasons]
    if reasons and not message.override:
        raise Conflict(
            f"the gate keeps {message.model} from being published: {'; '.join(reasons)}",
            code="GateRefused",
            reasons=reasons,
            compared_with=compared,
        )
    return {"passed": not reasons, "reasons": reasons, "compared_with": compared}


def _of(model: Generation | None, task: str) -> dict[str, Any]:
    told: dict[str, Any] = model.report.get("tasks", {}).get(task, {}) if model else {}
    return told


def _current(
    session: Session, told: Mapping[str, Any], candidate: Report, task: str, champion: str | None
) -> tuple[Report | None, str | None]:
    """What serves, measured on the same held-out people: when the candidate was trained or, where another serves by
    now, when that one was. Where neither was, what served then stands for it."""
    then = Report.from_dict(told["current"]) if told.get("current") else None
    if champion != told.get("current_model"):
        own = _of(session.get(Generation, champion), task).get("candidate") if champion else None
        serving = Report.from_dict(own) if own else None
        if serving is not None and _measured_on(serving) == _measured_on(candidate):
            return serving, champion
    return then, told.get("current_model")


def _measured_on(report: Report) -> tuple[str, int, int, int]:
    return report.protocol, report.queries, report.gallery, report.relevant
