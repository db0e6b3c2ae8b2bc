"""Sweep the service: remove every ten minutes what nothing needs any more."""

from typing import Any

from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Collection
from app.queue.messages import Sweep
from workers.cleanup.stale_rows import remove_old_rows, remove_unused_embeddings
from workers.cleanup.stored_files import remove_collection_files, remove_orphans
from workers.cleanup.uploads import remove_old_uploads
from workers.context import JobContext


def sweep_all(message: Sweep, context: JobContext) -> dict[str, Any]:
    """Return how much was removed: {"rows", "uploads", "files", "embeddings"}. Raises Interrupted.

    Two workers may sweep at once: each removal checks for itself whether it is still due.
    """
    resources = context.resources
    with reading(resources.database) as session:
        collections = set(session.scalars(select(Collection.id)))
    result = {"rows": remove_old_rows(resources), "uploads": remove_old_uploads(resources), "files": 0, "embeddings": 0}
    resources.blobs.empty_trash()
    for collection in sorted({*collections, *resources.blobs.collections()}):
        context.check()
        if collection not in collections:
            remove_collection_files(resources, collection)
            continue
        result["files"] += remove_orphans(context, collection)
        result["embeddings"] += remove_unused_embeddings(context, collection)
    return result
