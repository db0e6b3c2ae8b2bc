"""Sweep the service: remove every ten minutes what nothing needs any more."""

import logging
from typing import Any

from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Collection
from app.queue.messages import Sweep
from app.snapshots.reservations import is_being_restored
from workers.cleanup.audit import cut_audit_log
from workers.cleanup.expired_subjects import erase_expired_subjects
from workers.cleanup.snapshots import remove_unfinished_snapshots
from workers.cleanup.staged_models import remove_staged_models
from workers.cleanup.stale_rows import remove_old_rows, remove_unused_embeddings
from workers.cleanup.stored_files import remove_collection_files, remove_orphans, remove_unfinished_photos
from workers.cleanup.uploads import remove_old_uploads
from workers.context import JobContext
from workers.erasing.resumption import delete_late_snapshots, resume_erasures
from workers.failures import FailureLog
from workers.publishing.repaired_faces import take_back_repaired_faces

log = logging.getLogger("likeness.cleanup")


def sweep_all(message: Sweep, context: JobContext) -> dict[str, Any]:
    """Return how much was removed: {"subjects", "rows", "audit", "uploads", "files", "embeddings"}, and how many
    damaged faces could be read again: "repaired". Raises Interrupted.

    What fails for one collection is logged, and the others are swept all the same; the job fails at the end.
    Two workers may sweep at once: each removal checks for itself whether it is still due.
    """
    resources, failures = context.resources, FailureLog(log)
    with reading(resources.database) as session:
        collections = set(session.scalars(select(Collection.id).where(~Collection.is_deleted)))
    result = {
        "subjects": erase_expired_subjects(context, failures),
        "rows": remove_old_rows(resources),
        "audit": cut_audit_log(resources),
        "uploads": remove_old_uploads(resources),
        "files": remove_unfinished_photos(context),
        "embeddings": 0,
        "repaired": 0,
    }
    resume_erasures(resources)
    delete_late_snapshots(resources)
    remove_unfinished_snapshots(resources)
    remove_staged_models(resources)
    resources.blobs.empty_trash()
    for collection in sorted({*collections, *resources.blobs.collections()}):
        context.check()
        with failures.skip_failure("sweep", collection):
            if is_being_restored(resources.settings.home, collection):
                continue  # rows will name its files, however old they are by then
            if collection not in collections:
                remove_collection_files(resources, collection)
                continue
            result["files"] += remove_orphans(context, collection)
            result["embeddings"] += remove_unused_embeddings(context, collection)
            result["repaired"] += take_back_repaired_faces(context, collection)
    if failures.last is not None:
        raise failures.last
    return result
