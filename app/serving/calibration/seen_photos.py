"""Estimate how many photos of a gallery a model has learned from elsewhere, where they were stored in other files.

Photos that were saved again, at another size or quality, have another hash. To the model they are what it has learned:
it keeps these people farther apart than strangers, so that they must not stand for strangers.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face
from app.galleries.learned_collections import list_learned_changes
from app.serving.compensation.store import read_compensation
from app.serving.index_builder import IndexKey, read_embeddings
from app.serving.loaded_index import LoadedIndex
from ml.calibration import sample_genuine
from ml.calibration.impostor_distances import Distances
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.types import Ids, Rows

MAX_SEEN_SHARE = 0.25
"""Of the faces of a gallery: with more, it counts as a copy of those that the model was trained in."""
SAME_PHOTO_RATIO = 0.5
"""Two faces that lie nearer than this part of the median distance of a person's photos count as the same photo."""
CAUTIOUS_FPIR = 0.05
"""Where nobody here has several photos, the limit is what so many strangers would reach."""
MAX_PEOPLE, MAX_PROBES, GENUINE_PAIRS, MIN_GENUINE_PAIRS = 500, 500, 2000, 20

EmbedElsewhere = Callable[[str], Rows]
"""Embeds some faces of another collection, (n, dim), where the database has no embeddings of it by the model."""


def is_copy(seen_share: float | None) -> bool:
    """Return whether a gallery with this share of seen photos counts as a copy."""
    return seen_share is not None and seen_share > MAX_SEEN_SHARE


def read_seen_share(measurement: Mapping[str, Any] | None) -> float | None:
    """Return the share that was estimated when a deployment was measured; None if it was not."""
    share = (measurement or {}).get("seen_share")
    return None if share is None else float(share)


def estimate_seen_share(
    session: Session, loaded: LoadedIndex, ids: Ids, people: Ids, embed_elsewhere: EmbedElsewhere | None = None
) -> float | None:
    """Estimate which share of a gallery's faces a model has learned from in other collections.

    ids: (n,) pks of the faces, rising; people: (n,) the person of each, -1 if unknown
    embed_elsewhere: None: a collection without embeddings by this model cannot be compared
    Returns None if there is nothing to compare with.
    """
    key, model, rng = loaded.key, loaded.model, np.random.default_rng(0)
    sources = [name for name in list_learned_changes(model.provenance) if name != key.collection]
    chosen = rng.permutation(np.unique(people[people >= 0]))[:MAX_PEOPLE]
    if not sources:
        return None
    pks, rows = loaded.read_rows(ids[np.isin(people, chosen)])
    genuine = sample_genuine(rows, people[np.searchsorted(ids, pks)], GENUINE_PAIRS, 0, model.metric)
    probes = rows[rng.permutation(len(rows))[:MAX_PROBES]]
    nearest, compared, faces = np.full(len(probes), np.inf), 0, 0
    for source in sources:
        count, batches = _read_elsewhere(session, key, rows.shape[1], source, embed_elsewhere)
        faces += count
        for batch in batches:
            nearest = np.minimum(nearest, model.metric.distances(probes, batch).min(axis=1))
            compared += len(batch)
    limit = _find_limit(loaded, genuine, compared)
    if not len(probes) or not compared or limit is None:
        return None
    return min(1.0, float((nearest <= limit).mean()) * max(1.0, faces / compared))


def _read_elsewhere(
    session: Session, key: IndexKey, dim: int, source: str, embed_elsewhere: EmbedElsewhere | None
) -> tuple[int, Iterator[Rows]]:
    """Return how many faces a collection has, and (n, dim) embeddings of these, or of some, in batches."""
    created_at = session.scalar(select(Collection.created_at).where(Collection.id == source))
    if created_at is None:
        return 0, iter(())
    faces = session.scalar(select(func.count()).select_from(Face).where(Face.collection_id == source)) or 0
    there = IndexKey(source, key.task, key.model_id, created_at)
    compensation = read_compensation(session, source, key.task, key.model_id)
    batches = (rows for _, rows in read_embeddings(session, there, dim, compensation))
    first = next(batches, None)
    if first is None:
        embedded = embed_elsewhere(source) if embed_elsewhere and faces else np.empty((0, dim), np.float32)
        return faces, iter([embedded] if len(embedded) else [])
    return faces, (rows for part in ([first], batches) for rows in part)


def _find_limit(loaded: LoadedIndex, genuine: Distances, faces: int) -> float | None:
    """Return up to which distance two faces count as the same photo. faces: with how many others each is compared"""
    if loaded.model.metric.is_euclidean and len(genuine) >= MIN_GENUINE_PAIRS:
        return SAME_PHOTO_RATIO * float(np.median(genuine))
    calibration = loaded.model.calibrations.get(loaded.key.task)
    if calibration is None:
        return None
    cautious = OpenSetCalibration(DecisionRule(), (), optimistic=True)
    threshold = cautious.pairs_threshold(CAUTIOUS_FPIR, faces, (calibration.impostors,))
    return None if threshold is None else threshold.person_distance
