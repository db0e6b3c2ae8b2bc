"""Read what labels have gained so far, from the reports of the collection's trainings."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Training
from ml.active_learning.expected_gain import LabelOutlook, MeasuredStep, forecast

MAX_TRAININGS = 100
"""Newest trainings that are read."""


def read_outlook(session: Session, collection: str, task: str, labels: int) -> LabelOutlook | None:
    """Forecast the gain of more labels from the newest training that had more labels than the serving model.

    labels: number of labelled pairs now. Returns None if no such training was measured.
    """
    steps = list(_iterate_steps(session, collection, task))
    return forecast(steps[-1], labels) if steps else None


def _iterate_steps(session: Session, collection: str, task: str) -> Iterator[MeasuredStep]:
    """Iterate over the measured gains, the oldest first. A model that was not trained on labels counts as 0 labels."""
    query = select(Training.model, Training.report).where(Training.request["collection"].as_string() == collection)
    newest = session.execute(query.order_by(Training.created_at.desc(), Training.id.desc()).limit(MAX_TRAININGS)).all()
    label_counts: dict[str, int] = {}
    for model, report in reversed(newest):
        measured = report.get("tasks", {}).get(task)
        if not measured:
            continue
        after = _count_labels(measured["labels"])
        before = label_counts.get(measured.get("current_model") or "", 0)
        if model is not None:
            label_counts[model] = after
        difference = (measured.get("difference") or {}).get("mAP")
        if difference is not None and after > before:
            gain, low, high = (100 * float(difference[key]) for key in ("value", "low", "high"))
            yield MeasuredStep(before, after, gain, low, high)


def _count_labels(labels: Mapping[str, Any]) -> int:
    return int(labels["learned"]["pairs"]) + int(labels["unseen"]["pairs"])
