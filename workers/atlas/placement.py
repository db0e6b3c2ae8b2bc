"""Fit a map to a gallery, or restore one that was stored, and place faces on it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, exists, select

from app.db.session import reading
from app.db.tables import Atlas, Erasure, Face, FaceCoordinates
from app.errors import Conflict
from ml.atlas import MIN_FACES, GalleryMap, MapMethod, PcaMap, TsneMap, measure_neighbours
from ml.atlas.base import Coordinates
from ml.errors import WrongShape
from ml.types import Ids, Rows
from workers.atlas.gallery import AtlasGallery, rank_for_display

SAMPLE_BYTES = 64 * 2**20
MAX_TSNE_FACES = 20_000
"""Faces that t-SNE is fitted to; the others are placed beside them."""


@dataclass(frozen=True, eq=False)
class FittedAtlas:
    """A map that is ready to place faces.

    projection: what is stored to restore a PCA; measurements: how far the map can be believed
    reference_pks: (n,) faces whose coordinates the fit itself gave, rising; reference_coordinates: (n, 2)
    """

    map: GalleryMap
    projection: bytes
    measurements: dict[str, Any]
    reference_pks: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    reference_coordinates: Coordinates = field(default_factory=lambda: np.empty((0, 2)))

    def locate(self, pks: Ids, rows: Rows) -> Coordinates:
        """Return the coordinates of (n,) faces with their (n, d) embeddings: (n, 2). Raises ml.Unavailable."""
        is_reference = np.isin(pks, self.reference_pks)
        coordinates = np.empty((len(pks), 2))
        known = np.searchsorted(self.reference_pks, pks[is_reference])
        coordinates[is_reference] = self.reference_coordinates[known]
        coordinates[~is_reference] = self.map.locate(rows[~is_reference])
        return coordinates


def fit_atlas(gallery: AtlasGallery, method: MapMethod, seed: int, check: Callable[[], None]) -> FittedAtlas:
    """Fit a map to an even sample of the gallery, and measure how many neighbours it keeps.

    Raises Conflict (NothingToMap) if there are fewer than three faces or all are equal, ml.Unavailable.
    """
    limit = max(MIN_FACES, SAMPLE_BYTES // (4 * gallery.dim))
    limit = min(limit, MAX_TSNE_FACES) if method == "tsne" else limit
    sample = gallery.pks[np.argsort(rank_for_display(gallery.pks), kind="stable")[:limit]]
    pks, rows = gallery.read(sample)
    check()
    try:
        fitted = _fit_pca(rows) if method == "pca" else _fit_tsne(pks, rows, seed, check)
    except WrongShape as error:
        raise Conflict(
            f"an atlas needs at least {MIN_FACES} faces that are not all equal; there are {len(pks)}",
            code="NothingToMap",
        ) from error
    agreement = measure_neighbours(rows, fitted.locate(pks, rows), gallery.metric, seed)
    fitted.measurements["neighbours"] = asdict(agreement)
    return fitted


def select_faces_to_place(gallery: AtlasGallery, atlas: Atlas) -> ColumnElement[bool]:
    """Return the condition on faces that selects those that an update places.

    These are the new ones. A change of a face's source changes its embedding if sources are compensated for, so that
    then every changed face is placed again.
    """
    is_placed = exists().where(FaceCoordinates.atlas_pk == atlas.pk, FaceCoordinates.face_pk == Face.pk)
    is_changed = Face.change > atlas.change
    return is_changed if gallery.compensation.has_corrections else is_changed & ~is_placed.correlate(Face)


def has_lost_faces(gallery: AtlasGallery, atlas: Atlas) -> bool:
    """Whether faces were erased since an atlas was last brought up to date, to which a PCA may have been fitted.

    From its axes and the embeddings that are left, theirs could be computed.
    """
    is_here = (Erasure.collection_id == gallery.key.collection) & (
        Erasure.collection_created_at == gallery.key.collection_created_at
    )
    with reading(gallery.resources.database) as session:
        erased = select(Erasure.id).where(is_here, Erasure.change > atlas.change, Erasure.change <= gallery.change)
        return atlas.method == "pca" and session.scalar(erased.limit(1)) is not None


def restore_atlas(gallery: AtlasGallery, atlas: Atlas) -> FittedAtlas:
    """Restore a stored map. Raises ml.Corrupt, ml.Unavailable."""
    if atlas.method == "pca":
        return FittedAtlas(PcaMap.from_bytes(atlas.projection), atlas.projection, atlas.measurements)
    references = (
        select(FaceCoordinates.face_pk, FaceCoordinates.x, FaceCoordinates.y)
        .join(Face, Face.pk == FaceCoordinates.face_pk)
        .where(FaceCoordinates.atlas_pk == atlas.pk, ~select_faces_to_place(gallery, atlas))
        .order_by(FaceCoordinates.display_rank)
        .limit(MAX_TSNE_FACES)
    )
    with reading(gallery.resources.database) as session:
        stored = {pk: (x, y) for pk, x, y in session.execute(references)}
    pks, rows = gallery.read(np.array(list(stored), np.int64))
    coordinates = np.array([stored[pk] for pk in pks.tolist()], np.float64).reshape(-1, 2)
    return FittedAtlas(TsneMap(rows, coordinates, atlas.seed), b"", atlas.measurements, pks, coordinates)


def _fit_pca(rows: Rows) -> FittedAtlas:
    fitted = PcaMap.fit(rows)
    return FittedAtlas(fitted, fitted.to_bytes(), {"explained_variance": list(fitted.explained_variance)})


def _fit_tsne(pks: Ids, rows: Rows, seed: int, check: Callable[[], None]) -> FittedAtlas:
    fitted = TsneMap.fit(rows, seed, check)
    return FittedAtlas(fitted, b"", {"explained_variance": None}, pks, fitted.coordinates)
