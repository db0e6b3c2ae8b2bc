"""Erase the files of removed faces, or of a whole collection. Their rows are removed before the job is written."""

from typing import Any

from app.queue.messages import Erase
from workers.cleanup.stored_files import remove_collection_files, remove_photo_files
from workers.context import JobContext


def erase_files(message: Erase, context: JobContext) -> dict[str, Any]:
    """Remove the files that no row names any more: {"files"}. A second run finds nothing. Raises Interrupted."""
    if message.whole and not remove_collection_files(context.resources, message.collection):
        return {"files": "those that the collection of the same name does not need"}
    removed = remove_photo_files(context, message.collection, message.images)
    return {"files": "all" if message.whole else removed}
