"""Enrol the photos of a batch: one thread stores a chunk of photos while another analyses the next."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import JobItem
from app.enrolment.archives import Archive, Entry
from app.enrolment.photo_analysis import AnalysedPhoto, EnrolmentRequest, analyse_photo
from app.enrolment.preparation import PreparedPhotos, prepare_photos
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.queue.messages import ImportArchive
from ml.errors import Unreadable
from workers.context import JobContext
from workers.importing.item_results import AnalysedItem, make_item_key, record_outcomes

MAX_CHUNK_PHOTOS = 128
MAX_CHUNK_BYTES = 64 * 2**20
MAX_TRIES = 3
"""How often one photo is tried after a worker has died over its batch."""


@dataclass(frozen=True)
class BatchEnrolment:
    """One run of a batch.

    job: the import's; is_careful: a worker has died over this batch, so that photos are tried one by one
    """

    context: JobContext
    job: str
    message: ImportArchive
    archive: Archive
    is_careful: bool

    def enrol(self, items: list[JobItem]) -> None:
        """Analyse the items and enrol their photos. Raises Interrupted, NotFound (the collection)."""
        pending: Future[Any] | None = None
        with ThreadPoolExecutor(1, "ingest") as writer:
            for analysed in self._iterate_chunks(items):
                photos = [item.photo for item in analysed if item.photo is not None]
                ready = prepare_photos(self.context.resources, self.message.collection, photos)
                if pending is not None:
                    pending.result()
                pending = writer.submit(self._store, analysed, photos, ready)
                if self.is_careful:
                    pending.result()
            if pending is not None:
                pending.result()

    def _iterate_chunks(self, items: list[JobItem]) -> Iterator[list[AnalysedItem]]:
        """Yield photos that are stored together, limited in number and in bytes."""
        chunk: list[AnalysedItem] = []
        chunk_bytes = 0
        for item in items:
            self.context.check()
            analysed = self._analyse_carefully(item) if self.is_careful else self._analyse(item)
            chunk.append(analysed)
            chunk_bytes += len(analysed.photo.data) if analysed.photo else 0
            if self.is_careful or len(chunk) == MAX_CHUNK_PHOTOS or chunk_bytes > MAX_CHUNK_BYTES:
                yield chunk
                chunk, chunk_bytes = [], 0
        if chunk:
            yield chunk

    def _analyse(self, item: JobItem) -> AnalysedItem:
        resources, detail = self.context.resources, item.detail
        try:
            if "refused" in detail:
                return AnalysedItem(item.number, None, (detail["refused"],))
            entry = Entry(item.name, detail["size"], detail["size"], location=tuple(detail["place"]))
            data = self.archive.read(entry, resources.settings.max_image_bytes)
            photo = analyse_photo(resources, data, _make_request(item, self.message))
        except Unreadable as error:
            return AnalysedItem(item.number, None, (error.code,))
        return AnalysedItem(item.number, photo)

    def _analyse_carefully(self, item: JobItem) -> AnalysedItem:
        """Count the tries of a photo before it is analysed: one over which workers died MAX_TRIES times is refused."""
        tried = item.detail.get("tried", 0)
        if tried >= MAX_TRIES:
            return AnalysedItem(item.number, None, ("WORKER_LOST",))
        item.detail = item.detail | {"tried": tried + 1}
        with writing(self.context.resources.database) as session:
            session.execute(update(JobItem), [make_item_key(self.job, item.number) | {"detail": item.detail}])
        return self._analyse(item)

    def _store(self, analysed: list[AnalysedItem], photos: list[AnalysedPhoto], ready: PreparedPhotos) -> None:
        def record(session: Session, outcomes: list[EnrolmentOutcome]) -> None:
            record_outcomes(session, self.job, self.context.job_id, analysed, outcomes)

        enrol_photos(self.context.resources, self.message.collection, photos, ready, record)


def _make_request(item: JobItem, message: ImportArchive) -> EnrolmentRequest:
    detail = item.detail
    return EnrolmentRequest(
        subject=detail.get("subject"),
        role=detail.get("role") or message.role,
        external_image_id=detail.get("external_image_id") or item.name,
        external_id=detail.get("external_id"),
        source=detail.get("source") or message.source,
        metadata=detail.get("metadata", {}),
        aligned=message.aligned,
    )
