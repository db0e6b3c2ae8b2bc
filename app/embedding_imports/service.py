"""Accept vectors for import."""

from pathlib import Path

from sqlalchemy.orm import Session

from app.db.lookups import get_collection, make_not_found
from app.db.tables import Job
from app.embedding_imports.streaming import ReceivedVectors
from app.enrolment.vectors.npy_file import open_npy, refuse
from app.queue.jobs import enqueue
from app.queue.messages import ImportEmbeddings
from app.resources import Resources

JSON_START = b"{"


def accept_vectors(resources: Resources, session: Session, collection: str, received: ReceivedVectors) -> Job:
    """Enqueue the import of uploaded vectors, of which the header is read, and of the table the first byte.

    Raises Invalid, NotFound if the collection was deleted during the upload and another one has its name.
    """
    vectors = open_npy(received.vectors, resources.settings.max_import_entries)
    if vectors.dim != received.external.dim:
        raise refuse(f"its vectors have {vectors.dim} numbers; those of {collection!r} have {received.external.dim}")
    table = None if received.table is None else _name_by_format(received.table)
    if get_collection(session, collection).created_at != received.collection_created_at:
        raise make_not_found("collection", collection)
    message = ImportEmbeddings(
        collection=collection,
        path=str(received.vectors.resolve()),
        table=None if table is None else str(table.resolve()),
    )
    return enqueue(session, message)


def _name_by_format(table: Path) -> Path:
    """Give the table the suffix of its format: JSON lines begin with an object, and everything else is CSV."""
    with table.open("rb") as file:
        start = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip()
    return table.rename(table.with_suffix(".jsonl" if start.startswith(JSON_START) else ".csv"))
