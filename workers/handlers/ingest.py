"""A part of an import: its photos are looked at while those before them are being written."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Job, JobItem
from app.enrolment.archives import Archive, Entry, open_archive
from app.enrolment.photo_analysis import AnalysedPhoto, EnrolmentRequest, analyse_photo
from app.enrolment.preparation import Prepared, prepared
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.queue.jobs import LIVE_STATES, read_message
from app.queue.messages import ImportArchive, IngestBatch
from ml.errors import Unreadable
from workers.context import JobContext

CHUNK = 128
HELD_BYTES = 64 * 2**20
TRIES = 3  # of one photo, when a worker has died over this part before


@dataclass(frozen=True, eq=False)
class Seen:
    """An item after it was looked at: a photo, or the reasons why it is none."""

    number: int
    photo: AnalysedPhoto | None
    reasons: tuple[str, ...] = ()


def ingest_batch(message: IngestBatch, context: JobContext) -> dict[str, Any] | None:
    """Enrols those items that are still queued; run twice, it finds nothing more to do."""
    with reading(context.resources.database) as session:
        parent = session.get(Job, message.job)
        if parent is None or parent.state not in LIVE_STATES or parent.cancel:
            return None
        order = read_message(parent)
        assert isinstance(order, ImportArchive)
        died = session.get_one(Job, context.job_id).tries > 1
        within = (JobItem.job_id == message.job, JobItem.number >= message.first, JobItem.number < message.last)
        queued = select(JobItem).where(*within, JobItem.state == "queued").order_by(JobItem.number)
        items = list(session.scalars(queued))
    if items:
        _Batch(message, context, order, open_archive(Path(order.path))).work(items, careful=died)
    return None


@dataclass(frozen=True)
class _Batch:
    message: IngestBatch
    context: JobContext
    order: ImportArchive
    archive: Archive

    def work(self, items: list[JobItem], *, careful: bool) -> None:
        """One thread writes a chunk while this one looks at the next."""
        pending: Future[Any] | None = None
        with ThreadPoolExecutor(1, "ingest") as writer:
            for seen in self._chunks(items, careful):
                looked = [s.photo for s in seen if s.photo is not None]
                ready = prepared(self.context.resources, self.order.collection, looked)
                if pending is not None:
                    pending.result()
                pending = writer.submit(self._keep, seen, looked, ready)
                if careful:
                    pending.result()
            if pending is not None:
                pending.result()

    def _chunks(self, items: list[JobItem], careful: bool) -> Iterator[list[Seen]]:
        """Photos that are kept together: not too many, and not too large."""
        chunk: list[Seen] = []
        held = 0
        for item in items:
            self.context.check()
            seen = self._suspect(item) if careful else self._look(item)
            chunk.append(seen)
            held += len(seen.photo.data) if seen.photo else 0
            if careful or len(chunk) == CHUNK or held > HELD_BYTES:
                yield chunk
                chunk, held = [], 0
        if chunk:
            yield chunk

    def _look(self, item: JobItem) -> Seen:
        settings = self.context.resources.settings
        detail = item.detail
        try:
            if "refused" in detail:
                return Seen(item.number, None, (detail["refused"],))
            entry = Entry(item.name, detail["size"], detail["size"], place=tuple(detail["place"]))
            data = self.archive.read(entry, settings.max_image_bytes)
            photo = analyse_photo(self.context.resources, data, _wish(item, self.order))
        except Unreadable as error:
            return Seen(item.number, None, (error.code,))
        return Seen(item.number, photo)

    def _suspect(self, item: JobItem) -> Seen:
        """A worker died over this part: what kills three is not tried again."""
        tried = item.detail.get("tried", 0)
        if tried >= TRIES:
            return Seen(item.number, None, ("WORKER_LOST",))
        item.detail = item.detail | {"tried": tried + 1}
        with writing(self.context.resources.database) as session:
            session.execute(update(JobItem), [_key(self.message.job, item.number) | {"detail": item.detail}])
        return self._look(item)

    def _keep(self, seen: list[Seen], looked: list[AnalysedPhoto], ready: Prepared) -> None:
        def record(session: Session, outcomes: list[EnrolmentOutcome]) -> None:
            _record(session, self.message.job, self.context.job_id, seen, outcomes)

        enrol_photos(self.context.resources, self.order.collection, looked, ready, record)


def _wish(item: JobItem, order: ImportArchive) -> EnrolmentRequest:
    detail = item.detail
    return EnrolmentRequest(
        subject=detail.get("subject"),
        role=detail.get("role") or order.role,
        external_image_id=detail.get("external_image_id") or item.name,
        external_id=detail.get("external_id"),
        metadata=detail.get("metadata", {}),
        aligned=order.aligned,
    )


def _record(session: Session, job: str, batch: str, seen: list[Seen], outcomes: list[EnrolmentOutcome]) -> None:
    """The items' ends and the import's progress, in the transaction of the faces; each item counts once."""
    numbers = [s.number for s in seen]
    queued = select(JobItem.number).where(JobItem.job_id == job, JobItem.number.in_(numbers), JobItem.state == "queued")
    queued_numbers = set(session.scalars(queued.with_for_update()))
    by_photo = iter(outcomes)
    ends = [_end(s, next(by_photo) if s.photo is not None else None) for s in seen]
    rows = [_key(job, s.number) | end for s, end in zip(seen, ends, strict=True) if s.number in queued_numbers]
    if rows:
        session.execute(update(JobItem), rows)
    done = sum(row["state"] == "done" for row in rows)
    counts = {"done": Job.done + done, "failed": Job.failed + len(rows) - done}
    session.execute(update(Job).where(Job.id == job).values(**counts))
    session.execute(update(Job).where(Job.id == batch).values(tries=1))  # it moves: no death counts against it


def _end(seen: Seen, outcome: EnrolmentOutcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"state": "failed", "detail": {"reasons": list(seen.reasons)}}
    if outcome.conflict is not None:
        return {"state": "failed", "detail": {"reasons": ["DUPLICATE"], "face_ids": [outcome.conflict.face_id]}}
    reasons = sorted({r for u in outcome.looked.unindexed for r in u.reasons})
    detail = {"face_ids": [face.face_id for face, _ in outcome.faces], "reasons": reasons}
    return {"state": "done" if outcome.faces else "failed", "detail": detail}


def _key(job: str, number: int) -> dict[str, Any]:
    return {"job_id": job, "number": number}
