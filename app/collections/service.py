from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.collections.schemas import CollectionOut
from app.db.tables import Collection, Deployment, Face, Subject
from app.errors import NotFound
from app.queue.messages import Erase
from app.queue.queue import enqueue


def put(session: Session, collection_id: str, description: str, first_model: str) -> tuple[Collection, bool]:
    """The collection, and whether it is new. A new one is served by `first_model`."""
    collection = session.get(Collection, collection_id)
    if collection is not None:
        collection.description = description or collection.description
        return collection, False
    collection = Collection(id=collection_id, description=description)
    session.add_all([collection, Deployment(collection_id=collection_id, task="identity", champion=first_model)])
    session.flush()
    return collection, True


def get(session: Session, collection_id: str) -> Collection:
    collection = session.get(Collection, collection_id)
    if collection is None:
        raise NotFound(f"no collection {collection_id!r}")
    return collection


def remove(session: Session, collection_id: str) -> None:
    """Rows now, in this transaction; files by the job that it writes down."""
    session.delete(get(session, collection_id))
    enqueue(session, Erase(collection=collection_id, whole=True))


def shown(session: Session, collections: Sequence[Collection]) -> list[CollectionOut]:
    ids = [c.id for c in collections]
    faces = _counts(session, Face, ids)
    subjects = _counts(session, Subject, ids)
    return [
        CollectionOut(
            id=c.id,
            description=c.description,
            face_count=faces.get(c.id, 0),
            subject_count=subjects.get(c.id, 0),
            change=c.change,
            created_at=c.created_at,
        )
        for c in collections
    ]


def _counts(session: Session, row: type[Face] | type[Subject], ids: list[str]) -> dict[str, int]:
    counted = select(row.collection_id, func.count()).where(row.collection_id.in_(ids)).group_by(row.collection_id)
    return dict(session.execute(counted).all())
