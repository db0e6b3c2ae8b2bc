"""Store atlases and coordinates, a part in each transaction. Only a finished atlas is shown, and has a projection."""

import numpy as np
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import reading, writing
from app.db.tables import Atlas, Face, FaceCoordinates, now
from app.errors import NotFound
from app.resources import Resources
from ml.atlas import MapMethod
from ml.atlas.base import Coordinates
from ml.types import Ids
from workers.atlas.gallery import AtlasGallery, rank_for_display
from workers.atlas.placement import FittedAtlas

FACES_PER_DELETION = 10_000
FACES_PER_QUERY = 1_000


def find_finished_atlas(resources: Resources, collection: str, task: str) -> Atlas | None:
    """Return the newest finished atlas of a deployment, or None."""
    with reading(resources.database) as session:
        atlases = select(Atlas).where(
            Atlas.collection_id == collection, Atlas.task == task, Atlas.finished_at.is_not(None)
        )
        return session.scalar(atlases.order_by(Atlas.pk.desc()).limit(1))


def begin_atlas(gallery: AtlasGallery, fitted: FittedAtlas, method: MapMethod, seed: int) -> int:
    """Store a new atlas without faces, which is not shown yet, and return its pk. Raises NotFound."""
    with writing(gallery.resources.database) as session:
        _lock_collection(session, gallery)
        atlas = Atlas(
            collection_id=gallery.key.collection, task=gallery.key.task, model_id=gallery.key.model_id,
            version=gallery.version, compensation=gallery.compensation.version, method=method, seed=seed,
            measurements=fitted.measurements, fitted_faces=len(gallery.pks), change=gallery.change,
        )  # fmt: skip
        session.add(atlas)
        session.flush()
        return atlas.pk


def store_coordinates(gallery: AtlasGallery, atlas_pk: int, pks: Ids, coordinates: Coordinates) -> int:
    """Store where (n,) faces lie, in place of where they lay before, and return how many still exist.

    Raises NotFound if the atlas or the collection was deleted.
    """
    with writing(gallery.resources.database) as session:
        _lock_collection(session, gallery)
        if session.get(Atlas, atlas_pk) is None:
            raise NotFound("the atlas was deleted while faces were placed on it")
        existing: list[int] = []
        for start in range(0, len(pks), FACES_PER_QUERY):
            part = pks[start : start + FACES_PER_QUERY].tolist()
            existing += session.scalars(select(Face.pk).where(Face.pk.in_(part)))
            is_moved = (FaceCoordinates.atlas_pk == atlas_pk, FaceCoordinates.face_pk.in_(part))
            session.execute(delete(FaceCoordinates).where(*is_moved))
        kept = np.isin(pks, existing)
        values = zip(pks[kept].tolist(), coordinates[kept].tolist(), rank_for_display(pks[kept]).tolist(), strict=True)
        rows = [
            {"atlas_pk": atlas_pk, "face_pk": pk, "x": x, "y": y, "display_rank": rank} for pk, (x, y), rank in values
        ]
        if rows:
            session.execute(insert(FaceCoordinates), rows)
        return len(rows)


def finish_atlas(gallery: AtlasGallery, atlas_pk: int, fitted: FittedAtlas) -> None:
    """Show an atlas, as it stands at the gallery's change, and store its projection. Raises NotFound."""
    with writing(gallery.resources.database) as session:
        _lock_collection(session, gallery)
        atlas = session.get(Atlas, atlas_pk)
        if atlas is None:
            raise NotFound("the atlas was deleted while it was drawn")
        atlas.change, atlas.version, atlas.finished_at = gallery.change, gallery.version, now()
        atlas.projection = fitted.projection


def delete_other_atlases(resources: Resources, collection: str, task: str, kept: int | None) -> None:
    """Delete all atlases of a deployment but one, in steps. kept: None deletes all"""
    with reading(resources.database) as session:
        atlases = select(Atlas.pk).where(Atlas.collection_id == collection, Atlas.task == task)
        others = [pk for pk in session.scalars(atlases) if pk != kept]
    for atlas_pk in others:
        while _delete_some_coordinates(resources, atlas_pk):
            pass
        with writing(resources.database) as session:
            session.execute(delete(Atlas).where(Atlas.pk == atlas_pk))


def _delete_some_coordinates(resources: Resources, atlas_pk: int) -> int:
    """Delete one step of an atlas's coordinates, and return their number."""
    with writing(resources.database) as session:
        some = select(FaceCoordinates.face_pk).where(FaceCoordinates.atlas_pk == atlas_pk)
        pks = list(session.scalars(some.limit(FACES_PER_DELETION)))
        for start in range(0, len(pks), FACES_PER_QUERY):
            part = FaceCoordinates.face_pk.in_(pks[start : start + FACES_PER_QUERY])
            session.execute(delete(FaceCoordinates).where(FaceCoordinates.atlas_pk == atlas_pk, part))
        return len(pks)


def _lock_collection(session: Session, gallery: AtlasGallery) -> None:
    """Lock the collection, so that no face is deleted meanwhile. Raises NotFound if it is another one by now."""
    collection = get_collection(session, gallery.key.collection, lock=True)
    if collection.created_at != gallery.key.collection_created_at:
        raise NotFound(f"the collection {collection.id!r} was deleted and created anew")
