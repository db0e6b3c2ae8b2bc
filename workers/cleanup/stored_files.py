"""Remove the files of photos and crops that no row names any more.

Files are removed under the collection's lock, so that an upload of the same photo at the same time keeps its own. A
worker that was frozen may have lost the lock: it is checked before every few files.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.session import check_transaction, reading, writing
from app.db.tables import Collection, Face
from app.resources import Resources
from app.storage.blob_store import Blobs
from workers.cleanup.steps import ORPHAN_SECONDS, iterate_steps
from workers.context import JobContext

PHOTOS_PER_STEP = 200
FileOwner = tuple[str, int | None]
"""What a file belongs to: (image, None) is a photo, (image, number) a face in it."""


def remove_collection_files(resources: Resources, collection: str) -> bool:
    """Remove all files of a deleted collection. Returns False where a new collection has its name: the sweep does it.

    A row of that name is held during the removal, so that nobody can create the collection meanwhile.
    """
    try:
        with writing(resources.database) as session:
            name = Collection(id=collection)
            session.add(name)
            session.flush()
            check_transaction(session)
            resources.blobs.set_aside(collection)
            session.delete(name)
    except IntegrityError:
        return False
    resources.blobs.empty_trash()
    return True


def remove_late_files(context: JobContext, collection: str) -> None:
    """Remove the files that jobs of a deleted collection have written after its deletion. Raises Interrupted.

    A collection of that name keeps those that its rows name, and a photo that is being enrolled is written again.
    """
    if remove_collection_files(context.resources, collection):
        return
    for names in iterate_steps(context.resources.blobs.names(collection)):
        context.check()
        remove_unnamed(context.resources, collection, names)


def remove_photo_files(context: JobContext, collection: str, images: Sequence[str]) -> int:
    """Remove the files of these photos that no row names, and return their number. Raises Interrupted."""
    blobs, removed = context.resources.blobs, 0
    for start in range(0, len(images), PHOTOS_PER_STEP):
        context.check()
        step = images[start : start + PHOTOS_PER_STEP]
        names = [name for image in step for name in blobs.files_of(collection, image)]
        removed += remove_unnamed(context.resources, collection, names)
    return removed


def remove_orphans(context: JobContext, collection: str) -> int:
    """Remove the files of a collection that no row names and that are old enough, and return their number.

    Raises Interrupted.
    """
    blobs, removed = context.resources.blobs, 0
    for names in iterate_steps(blobs.names(collection)):
        context.check()
        owners = {name: blobs.parse_name(name) for name in names}
        with reading(context.resources.database) as session:
            named = _list_named(session, collection, {image for image, _ in owners.values()})
        unnamed = [name for name, owner in owners.items() if owner not in named]
        orphans = [name for name in unnamed if blobs.age(collection, name) > ORPHAN_SECONDS]
        removed += remove_unnamed(context.resources, collection, orphans) if orphans else 0
    return removed


def remove_unfinished_photos(context: JobContext) -> int:
    """Remove the files of enrolments that were killed, or run now, and return their number. Raises Interrupted.

    One that runs now finds under the collection's lock that they are gone, and writes them again.
    """
    removed = 0
    for collection, names in context.resources.unfinished_photos.read():
        context.check()
        removed += remove_unnamed(context.resources, collection, names)
    context.resources.unfinished_photos.remove_old(ORPHAN_SECONDS)
    return removed


def remove_unnamed(resources: Resources, collection: str, names: Sequence[str]) -> int:
    """Remove those of these files that no row of the collection names, and return their number."""
    owners = {name: Blobs.parse_name(name) for name in names}
    with writing(resources.database) as session:
        if session.get(Collection, collection, with_for_update=True) is None:
            return 0
        named = _list_named(session, collection, {image for image, _ in owners.values()})
        unnamed = [name for name, owner in owners.items() if owner not in named]
        return resources.blobs.remove(collection, unnamed, partial(check_transaction, session))


def _list_named(session: Session, collection: str, images: Iterable[str]) -> set[FileOwner]:
    """List the photos and faces that rows name, of these photos."""
    rows = select(Face.image_id, Face.number).where(Face.collection_id == collection, Face.image_id.in_(images))
    faces = set(session.execute(rows).all())
    return {*faces, *((image, None) for image, _ in faces)}
