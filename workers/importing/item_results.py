"""Record what became of the items of an import."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from app.db.tables import Job, JobItem
from app.enrolment.photo_analysis import AnalysedPhoto
from app.enrolment.store import EnrolmentOutcome


@dataclass(frozen=True, eq=False)
class AnalysedItem:
    """An item of an import with its analysed photo, or with the reasons why it has none."""

    number: int
    photo: AnalysedPhoto | None
    reasons: tuple[str, ...] = ()


def record_outcomes(
    session: Session, job: str, batch: str, analysed: list[AnalysedItem], outcomes: list[EnrolmentOutcome]
) -> None:
    """Set the final state of items and the import's progress, in the transaction that writes the faces.

    job, batch: ids of the import's job and of the batch's; outcomes: one for each item with a photo, in their order
    An item that is no longer queued was counted by an earlier run, and is not counted again.
    """
    numbers = [item.number for item in analysed]
    queued = select(JobItem.number).where(JobItem.job_id == job, JobItem.number.in_(numbers), JobItem.state == "queued")
    queued_numbers = set(session.scalars(queued.with_for_update()))
    by_photo = iter(outcomes)
    results = [_make_result(item, next(by_photo) if item.photo is not None else None) for item in analysed]
    rows = [
        make_item_key(job, item.number) | result
        for item, result in zip(analysed, results, strict=True)
        if item.number in queued_numbers
    ]
    update_items(session, rows)
    done = sum(row["state"] == "done" for row in rows)
    counts = {"done": Job.done + done, "failed": Job.failed + len(rows) - done}
    session.execute(update(Job).where(Job.id == job).values(**counts))
    # the batch makes progress: an earlier death of a worker no longer counts
    session.execute(update(Job).where(Job.id == batch).values(tries=1))


def make_item_key(job: str, number: int) -> dict[str, Any]:
    """Return the key of an item, for `update_items`."""
    return {"key_job": job, "key_number": number}


def update_items(session: Session, rows: list[dict[str, Any]]) -> None:
    """Set these columns of items. rows: each a key of `make_item_key` and the same columns"""
    if not rows:
        return
    names = [name for name in rows[0] if name in JobItem.__table__.c]
    is_item = (JobItem.job_id == bindparam("key_job"), JobItem.number == bindparam("key_number"))
    statement = update(JobItem).where(*is_item).values({name: bindparam(name) for name in names})
    session.connection().execute(statement, rows)


def _make_result(item: AnalysedItem, outcome: EnrolmentOutcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"state": "failed", "detail": {"reasons": list(item.reasons)}}
    if outcome.conflict is not None:
        return {"state": "failed", "detail": {"reasons": ["DUPLICATE"], "face_ids": [outcome.conflict.face_id]}}
    if outcome.refusal is not None:
        return {"state": "failed", "detail": {"reasons": [outcome.refusal]}}
    reasons = sorted({reason for unindexed in outcome.photo.unindexed for reason in unindexed.reasons})
    detail = {"face_ids": [face.face_id for face, _ in outcome.faces], "reasons": reasons}
    return {"state": "done" if outcome.faces else "failed", "detail": detail}
