"""Simulate the sources of a deployment: degrade stored crops of the reference, and describe them."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Face
from app.errors import NotFound
from app.resources import Resources
from app.serving.compensation.sampled_faces import SampledFaces
from app.storage.blob_store import Blobs
from app.storage.stored_faces import CropsDamaged, read_crops
from ml.compensation import (
    MAX_SPREAD_DIM,
    SimulatedFaces,
    degrade_crops,
    find_reference,
    has_unit_length,
    simulate_sources,
)
from ml.model import Model
from ml.types import CropKind, Crops, Ids, Rows

log = logging.getLogger("likeness.engine")

FACES_PER_BATCH = 16
PAUSE_RATIO = 1.0
"""After each batch it rests this many times as long as the batch took, for searches and the follower."""


def simulate_faces(resources: Resources, model: Model, faces: SampledFaces) -> dict[str, SimulatedFaces]:
    """Simulate the sources that a degradation explains. Empty where the correction of sources cannot use it.

    It describes about a thousand crops if there is another source, and 2,000 for each degradation that is found. Faces
    that were erased meanwhile, or whose crops cannot be read, are left out.
    """
    if model.recipe.external is not None or not has_unit_length(faces.rows) or faces.rows.shape[1] > MAX_SPREAD_DIM:
        return {}
    dim, missing = faces.rows.shape[1], set[int]()

    def describe(degradation: str, positions: Ids) -> Rows:
        pks = faces.pks[positions]
        starts = range(0, len(pks), FACES_PER_BATCH)
        batches = [pks[start : start + FACES_PER_BATCH].tolist() for start in starts]
        rows = np.concatenate([_describe_gently(resources, model, degradation, batch, dim) for batch in batches])
        missing.update(pks[~np.isfinite(rows).all(1)].tolist())
        return rows

    simulated = simulate_sources(faces.rows, faces.sources, find_reference(faces.sources), describe)
    if missing:
        log.warning("sources.crops_missing model=%s faces=%d", model.id, len(missing))
    return simulated


def _describe_gently(resources: Resources, model: Model, degradation: str, pks: Sequence[int], dim: int) -> Rows:
    """Describe a batch as `_describe_degraded` does, and then rest."""
    started = time.monotonic()
    rows = _describe_degraded(resources, model, degradation, pks, dim)
    time.sleep(PAUSE_RATIO * (time.monotonic() - started))
    return rows


def _describe_degraded(resources: Resources, model: Model, degradation: str, pks: Sequence[int], dim: int) -> Rows:
    """Return (n, dim) embeddings of degraded crops. The row of a face whose crops are missing is NaN."""
    with reading(resources.database) as session:
        faces = {face.pk: face for face in session.scalars(select(Face).where(Face.pk.in_(pks)))}
        session.expunge_all()
    crops: dict[int, Mapping[CropKind, Crops]] = {}
    for position, pk in enumerate(pks):
        with suppress(NotFound, CropsDamaged):
            crops[position] = _read_degraded(resources.blobs, faces.get(pk), model.recipe.crops, degradation)
    rows = np.full((len(pks), dim), np.nan, np.float32)
    if crops:
        kinds = {kind: np.concatenate([one[kind] for one in crops.values()]) for kind in model.recipe.crops}
        rows[list(crops)] = model.embed_crops(kinds, ["identity"])["identity"]
    return rows


def _read_degraded(
    blobs: Blobs, face: Face | None, kinds: Sequence[CropKind], degradation: str
) -> dict[CropKind, Crops]:
    """Return (1, ...) degraded crops of each kind. Raises NotFound (the face), CropsDamaged."""
    if face is None:
        raise NotFound("the face was erased")
    return {kind: degrade_crops(read_crops(blobs, [face], kind), degradation) for kind in kinds}
