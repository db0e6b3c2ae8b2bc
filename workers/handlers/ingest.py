"""Enrol one batch of an import."""

from pathlib import Path

from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Job, JobItem
from app.enrolment.archives.photo_files import open_photo_files
from app.queue.jobs import LIVE_STATES, read_message
from app.queue.messages import ImportArchive, IngestBatch
from workers.context import JobContext
from workers.importing.batch_enrolment import BatchEnrolment


def ingest_batch(message: IngestBatch, context: JobContext) -> None:
    """Enrol the batch's items that are still queued. Does nothing where the import was cancelled or has ended."""
    with reading(context.resources.database) as session:
        parent = session.get(Job, message.job)
        if parent is None or parent.state not in LIVE_STATES or parent.cancel:
            return
        import_message = read_message(parent)
        assert isinstance(import_message, ImportArchive)
        worker_died = session.get_one(Job, context.job_id).tries > 1
        in_batch = (JobItem.job_id == message.job, JobItem.number >= message.first, JobItem.number < message.last)
        queued = select(JobItem).where(*in_batch, JobItem.state == "queued").order_by(JobItem.number)
        items = list(session.scalars(queued))
    if items:
        files = open_photo_files(Path(import_message.path), context.resources.settings, context.check)
        BatchEnrolment(context, message.job, import_message, files, is_careful=worker_died).enrol(items)
