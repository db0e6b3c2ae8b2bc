"""Files go after their rows: under the collection's lock, so that no upload of the same photo can lose its own."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Collection, Face
from app.queue.messages import Erase
from app.resources import Resources
from app.storage.blob_store import Blobs
from workers.context import JobContext

STEP = 200


def erase_files(message: Erase, context: JobContext) -> dict[str, Any]:
    """Removes what no row names any more; run twice, it finds nothing."""
    removed = 0
    if message.whole and not whole(context.resources, message.collection):
        return {"files": "those that the collection of the same name does not need"}
    for start in range(0, len(message.images), STEP):
        context.check()
        some = message.images[start : start + STEP]
        names = [name for image in some for name in context.resources.blobs.files_of(message.collection, image)]
        removed += unnamed(context.resources, message.collection, names)
    return {"files": "all" if message.whole else removed}


def whole(resources: Resources, collection: str) -> bool:
    """Removes all files of a collection that is gone. False: one of that name is there again; the sweep tidies it."""
    try:
        with writing(resources.database) as session:
            name = Collection(id=collection)
            session.add(name)
            session.flush()  # nobody can make a collection of this name until we have ended
            resources.blobs.set_aside(collection)
            session.delete(name)
    except IntegrityError:
        return False
    resources.blobs.empty_trash()
    return True


def unnamed(resources: Resources, collection: str, names: Sequence[str]) -> int:
    """Removes those of these files that no row of the collection names; how many there were."""
    meant = {name: Blobs.parse_name(name) for name in names}
    with writing(resources.database) as session:
        if session.get(Collection, collection, with_for_update=True) is None:
            return 0
        alive = named(session, collection, {image for image, _ in meant.values()})
        return resources.blobs.remove(collection, [name for name, what in meant.items() if what not in alive])


def named(session: Session, collection: str, images: Iterable[str]) -> set[tuple[str, int | None]]:
    """What rows name of these photos: (image, None) for the photo itself, (image, number) for the crops of a face."""
    rows = select(Face.image_id, Face.number).where(Face.collection_id == collection, Face.image_id.in_(images))
    crops = set(session.execute(rows).all())
    return {*crops, *((image, None) for image, _ in crops)}
