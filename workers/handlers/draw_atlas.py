"""Draw the map of a deployment's faces, or bring it up to date."""

from typing import Any

from sqlalchemy import ColumnElement

from app.db.tables import Atlas
from app.errors import Conflict
from app.queue.messages import DrawAtlas
from ml.atlas import MIN_FACES, PcaMap
from workers.atlas.atlas_store import (
    begin_atlas,
    delete_other_atlases,
    find_finished_atlas,
    finish_atlas,
    store_coordinates,
)
from workers.atlas.gallery import AtlasGallery, read_atlas_gallery
from workers.atlas.placement import FittedAtlas, fit_atlas, has_lost_faces, restore_atlas, select_faces_to_place
from workers.context import JobContext
from workers.progress import PROGRESS_STEPS, ProgressReporter, report_progress, to_json_values

FIT_END = 300
"""The step of the job's progress at which the map is fitted."""
MAX_GROWTH = 1.5
"""A map is fitted anew once the gallery has grown or shrunk by this factor."""


def draw_deployment_atlas(message: DrawAtlas, context: JobContext) -> dict[str, Any]:
    """Draw an atlas, or update one, and return {"method", "model", "faces", "placed", "fitted"} and its measurements.

    faces: in the gallery; placed: by this job; fitted: whether the map is a new one
    A second run starts from what the first one finished. An update that finds no finished atlas only deletes
    unfinished ones. One that finds nothing to map deletes the atlas, which sums up the faces that were there.
    Raises NotFound, Conflict (NothingToMap), Interrupted, ml.Corrupt, ml.Unavailable.
    """
    atlas = find_finished_atlas(context.resources, message.collection, message.task)
    if message.only_update and atlas is None:
        delete_other_atlases(context.resources, message.collection, message.task, None)
        return {}
    gallery = read_atlas_gallery(context.resources, message.collection, message.task)
    with report_progress(context) as reporter:
        if message.only_update and atlas is not None and suits_gallery(atlas, gallery):
            fitted, atlas_pk = restore_atlas(gallery, atlas), atlas.pk
            placed = _place_faces(gallery, fitted, atlas_pk, reporter, select_faces_to_place(gallery, atlas))
        else:
            delete_other_atlases(context.resources, message.collection, message.task, atlas.pk if atlas else None)
            try:
                fitted = fit_atlas(gallery, message.method, message.seed, context.check)
            except Conflict:
                if not message.only_update:
                    raise
                delete_other_atlases(context.resources, message.collection, message.task, None)
                return {}
            reporter.phase("fit", 0, FIT_END)(1, 1, {})
            atlas_pk = begin_atlas(gallery, fitted, message.method, message.seed)
            placed = _place_faces(gallery, fitted, atlas_pk, reporter)
        finish_atlas(gallery, atlas_pk, fitted)
        delete_other_atlases(context.resources, message.collection, message.task, atlas_pk)
        reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
    is_new = atlas is None or atlas.pk != atlas_pk
    counts = {"faces": len(gallery.pks), "placed": placed, "fitted": is_new}
    measurements: dict[str, Any] = to_json_values(fitted.measurements)
    return {"method": message.method, "model": gallery.key.model_id} | counts | measurements


def suits_gallery(atlas: Atlas, gallery: AtlasGallery) -> bool:
    """Whether new faces can be placed on an atlas.

    Model, source compensation and size are still alike then, and no face was erased to which a PCA was fitted. One that
    an earlier version drew sums up its faces too closely: see `ml.atlas.pca_map.HEADER`.
    """
    is_readable = atlas.method != "pca" or PcaMap.is_written_by_this_version(atlas.projection)
    if not is_readable or len(gallery.pks) < MIN_FACES or has_lost_faces(gallery, atlas):
        return False
    is_same_space = (atlas.model_id, atlas.compensation) == (gallery.key.model_id, gallery.compensation.version)
    growth = max(1, len(gallery.pks)) / max(1, atlas.fitted_faces)
    return is_same_space and 1 / MAX_GROWTH <= growth <= MAX_GROWTH


def _place_faces(
    gallery: AtlasGallery,
    fitted: FittedAtlas,
    atlas_pk: int,
    reporter: ProgressReporter,
    *where: ColumnElement[bool],
) -> int:
    """Place every face that meets the conditions, and return their number."""
    report = reporter.phase("placing", FIT_END, PROGRESS_STEPS)
    placed = 0
    for pks, rows in gallery.iterate(*where):
        placed += store_coordinates(gallery, atlas_pk, pks, fitted.locate(pks, rows))
        report(min(placed, len(gallery.pks)), len(gallery.pks) + 1, {})
    return placed
