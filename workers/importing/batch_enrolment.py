"""Enrol the photos of a batch: one thread stores a chunk of photos while another analyses the next.

A chunk over which an error is raised is enrolled photo by photo, so that only the photo that causes it is refused.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.subject_ids import compose
from app.db.tables import JobItem
from app.enrolment.archives.entries import Entry
from app.enrolment.archives.photo_files import Photo, PhotoFiles
from app.enrolment.photo_analysis import AnalysedPhoto, EnrolmentRequest, analyse_photo
from app.enrolment.preparation import PreparedPhotos, prepare_photos
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.queue.messages import ImportArchive
from app.serving.limits.photo_failures import PHOTO_FAILED, PhotoFailed, is_caused_by_photo, report_photo_failure
from ml.errors import Unreadable
from workers.context import Interrupted, JobContext
from workers.importing.item_results import AnalysedItem, make_item_key, record_outcomes, update_items

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
    files: PhotoFiles
    is_careful: bool

    def enrol(self, items: list[JobItem]) -> None:
        """Analyse the items and enrol their photos. Raises Interrupted, NotFound (the collection)."""
        pending: Future[Any] | None = None
        with ThreadPoolExecutor(1, "ingest") as writer:
            for analysed in self._iterate_chunks(items):
                prepared = self._prepare(analysed)
                if pending is not None:
                    pending.result()
                pending = writer.submit(self._store_chunk, analysed, prepared)
                if self.is_careful:
                    pending.result()
            if pending is not None:
                pending.result()

    def _iterate_chunks(self, items: list[JobItem]) -> Iterator[list[AnalysedItem]]:
        """Yield photos that are stored together, limited in number and in bytes."""
        chunk: list[AnalysedItem] = []
        chunk_bytes = 0
        with closing(self.files.iterate_photos(map(_make_entry, filter(_has_photo, items)))) as photos:
            for item in items:
                self.context.check()
                analysed = self._analyse_next(item, photos)
                chunk.append(analysed)
                chunk_bytes += len(analysed.photo.data) if analysed.photo else 0
                if self.is_careful or len(chunk) == MAX_CHUNK_PHOTOS or chunk_bytes > MAX_CHUNK_BYTES:
                    yield chunk
                    chunk, chunk_bytes = [], 0
        if chunk:
            yield chunk

    def _analyse_next(self, item: JobItem, photos: Iterator[Photo]) -> AnalysedItem:
        """Analyse the next photo, which is this item's. An item without one takes none."""
        if not _has_photo(item):
            return AnalysedItem(item.number, None, (item.detail["refused"],))
        photo = next(photos)
        return self._analyse_carefully(item, photo) if self.is_careful else self._analyse(item, photo)

    def _analyse(self, item: JobItem, photo: Photo) -> AnalysedItem:
        try:
            if isinstance(photo, Unreadable):
                raise photo
            request = _make_request(item, self.message)
            return AnalysedItem(item.number, analyse_photo(self.context.resources, photo, request))
        except Unreadable as error:
            return AnalysedItem(item.number, None, (error.code,))
        except PhotoFailed:
            return AnalysedItem(item.number, None, (PHOTO_FAILED,))

    def _analyse_carefully(self, item: JobItem, photo: Photo) -> AnalysedItem:
        """Count the tries of a photo before it is analysed: one over which workers died MAX_TRIES times is refused."""
        tried = item.detail.get("tried", 0)
        if tried >= MAX_TRIES:
            return AnalysedItem(item.number, None, ("WORKER_LOST",))
        item.detail = item.detail | {"tried": tried + 1}
        with writing(self.context.resources.database) as session:
            update_items(session, [make_item_key(self.job, item.number) | {"detail": item.detail}])
        return self._analyse(item, photo)

    def _prepare(self, analysed: list[AnalysedItem]) -> PreparedPhotos | None:
        """Embed the faces of a chunk; None if an error was raised that one of its photos may have caused."""
        try:
            return prepare_photos(self.context.resources, self.message.collection, _list_photos(analysed))
        except Exception as error:
            if not is_caused_by_photo(error):
                raise
            return None

    def _store_chunk(self, analysed: list[AnalysedItem], prepared: PreparedPhotos | None) -> None:
        """Store a chunk in one transaction, or photo by photo if an error is raised."""
        try:
            if prepared is not None:
                self._store(analysed, prepared)
                return
        except Exception as error:
            if not is_caused_by_photo(error):
                raise
        for item in analysed:
            self.context.check()
            self._store_one(item)

    def _store_one(self, item: AnalysedItem) -> None:
        """Store one photo, or refuse it if it raises an error."""
        photos = _list_photos([item])
        try:
            with report_photo_failure("embed"):
                prepared = prepare_photos(self.context.resources, self.message.collection, photos)
            with report_photo_failure("store"):
                self._store([item], prepared)
        except PhotoFailed:
            self._store([replace(item, photo=None, reasons=(PHOTO_FAILED,))], PreparedPhotos({}))

    def _store(self, analysed: list[AnalysedItem], prepared: PreparedPhotos) -> None:
        def record(session: Session, outcomes: list[EnrolmentOutcome]) -> None:
            record_outcomes(session, self.job, self.context.job_id, analysed, outcomes)

        photos, collection = _list_photos(analysed), self.message.collection
        self.context.check()
        try:
            enrol_photos(self.context.resources, collection, photos, prepared, record)
        except Interrupted:  # the files were written before
            self.context.remove_files_later(collection, [photo.image_id for photo in photos])
            raise


def _list_photos(analysed: list[AnalysedItem]) -> list[AnalysedPhoto]:
    return [item.photo for item in analysed if item.photo is not None]


def _has_photo(item: JobItem) -> bool:
    return "refused" not in item.detail


def _make_entry(item: JobItem) -> Entry:
    size = item.detail["size"]
    return Entry(item.name, size, size, location=tuple(item.detail["place"]))


def _make_request(item: JobItem, message: ImportArchive) -> EnrolmentRequest:
    detail, subject = item.detail, item.detail.get("subject")
    return EnrolmentRequest(
        subject=compose(subject) if subject else None,  # an earlier version listed ids as they were
        role=detail.get("role") or message.role,
        external_image_id=detail.get("external_image_id") or item.name,
        external_id=detail.get("external_id"),
        source=detail.get("source") or message.source,
        metadata=detail.get("metadata", {}),
        aligned=message.aligned,
    )
