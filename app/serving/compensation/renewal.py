"""Measure the sources of a deployment, beside the serving index, and store the compensation that helps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from filelock import FileLock
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.session import snapshot, writing
from app.db.tables import Collection, Deployment, Face, StoredCompensation, Subject, now
from app.galleries.retention import may_be_used
from app.resources import Resources
from app.serving.calibration.gallery_calibration import measure_with_compensation
from app.serving.compensation.sampled_faces import SampledFaces, sample_faces
from app.serving.compensation.simulation import simulate_faces
from app.serving.compensation.store import Compensation, read_compensation
from app.serving.index_builder import IndexKey
from app.serving.loaded_index import LoadedIndex
from ml.compensation import (
    MIN_FACES_TO_CORRECT,
    NO_SOURCE,
    Decision,
    JudgedCompensation,
    judge_compensation,
    limit_sources,
)

MIN_CHANGE_RATIO = 0.2
"""The share by which a source must grow or shrink before it is measured again."""
LOCK_FILE = "sources.lock"

FaceCounts = dict[str, list[int]]
"""Source -> the number of its faces, and of those with a subject."""


def renew(resources: Resources, loaded: LoadedIndex) -> bool:
    """Measure the sources again if they have changed. Returns whether something was stored.

    If the corrections change, the gallery is calibrated with the new ones, and both are stored in one transaction. The
    followers then load an index with these corrections beside the serving one. One process of a home measures at a
    time: a process that waited for another finds the sources measured.
    """
    if not has_compensation(loaded) or _read_due_counts(resources, loaded) is None:
        return False
    with FileLock(resources.settings.home / LOCK_FILE):
        counts = _read_due_counts(resources, loaded)
        return counts is not None and _measure(resources, loaded, counts)


def _read_due_counts(resources: Resources, loaded: LoadedIndex) -> FaceCounts | None:
    """Count the faces of the largest sources, of which there may be as many as faces; None if none is due.

    What an earlier version measured, which did not simulate or guess sources, is measured again.
    """
    key = loaded.key
    with snapshot(resources.database) as session:
        counts = count_faces(session, key.collection, limit_sources(loaded.dim))
        stored = session.get(StoredCompensation, (key.collection, key.task, key.model_id))
        is_current = stored is not None and all("recognised" in decision for decision in stored.decisions.values())
        return counts if needs_renewal(counts, stored.faces if stored and is_current else {}) else None


def _measure(resources: Resources, loaded: LoadedIndex, counts: FaceCounts) -> bool:
    """Measure the sources, and store the corrections that help. Returns whether they were stored."""
    key = loaded.key
    with snapshot(resources.database) as session:
        current = read_compensation(session, key.collection, key.task, key.model_id)
        faces = sample_faces(session, key, loaded.dim, list(counts))
    judged = _judge(resources, loaded, faces) if len(faces.pks) else None
    corrections = judged.compensation if judged else None
    calibration, version = None, current.version
    if current.has_corrections or (corrections and corrections.corrections):
        compensation = Compensation(version + 1, corrections)
        next_key = replace(key, compensation=compensation.version)
        with snapshot(resources.database) as session:
            calibration = measure_with_compensation(session, resources, loaded.model, next_key, compensation)
    with writing(resources.database) as session:
        return _store(session, key, _Renewal(version, judged, counts, calibration))


def _judge(resources: Resources, loaded: LoadedIndex, faces: SampledFaces) -> JudgedCompensation:
    simulations = simulate_faces(resources, loaded.model, faces)
    return judge_compensation(faces.rows, faces.sources, faces.people, loaded.model.metric, simulations)


def has_compensation(loaded: LoadedIndex) -> bool:
    """Whether sources are compensated for: among people, and where distances are those between two points."""
    return loaded.key.task == "identity" and loaded.index.metric.is_euclidean


def count_faces(session: Session, collection: str, limit: int) -> FaceCounts:
    """Count the faces of the `limit` largest sources and those without one, less those that may not be used.

    Empty if no face has a source.
    """
    here = Face.collection_id == collection
    numbers = func.count(), func.count(Face.subject_pk)
    of_sources = select(Face.source, *numbers).where(here, Face.source.is_not(None)).group_by(Face.source)
    of_sources = of_sources.order_by(numbers[0].desc(), Face.source).limit(limit)
    counts = {str(source): [faces, named] for source, faces, named in session.execute(of_sources)}
    if not counts:
        return {}
    faces, named = session.execute(select(*numbers).where(here, Face.source.is_(None))).one()
    counts = ({NO_SOURCE: [faces, named]} if faces else {}) | counts
    refused = _count_refused_faces(session, collection)
    return {source: [number - refused.get(source, 0) for number in of_source] for source, of_source in counts.items()}


def _count_refused_faces(session: Session, collection: str) -> dict[str, int]:
    """Return source -> the number of faces that may not be used: see `may_be_used`. Most collections have few."""
    refused = select(Face.source, func.count()).join(Subject, Subject.pk == Face.subject_pk).group_by(Face.source)
    rows = session.execute(refused.where(Subject.collection_id == collection, ~may_be_used(now())))
    return {source or NO_SOURCE: number for source, number in rows}


def needs_renewal(counts: FaceCounts, measured: Mapping[str, list[int]]) -> bool:
    """Whether the faces or the names of a source have changed enough since the last measurement."""
    if not counts:
        return any(faces for faces, _ in measured.values())
    known = [*counts.items(), *measured.items()]
    if all(faces < MIN_FACES_TO_CORRECT for source, (faces, _) in known if source != NO_SOURCE):
        return False
    pairs = ((counts.get(source, [0, 0]), measured.get(source, [0, 0])) for source in counts.keys() | measured.keys())
    return any(
        abs(now_counted - before) > MIN_CHANGE_RATIO * before
        for new, old in pairs
        for now_counted, before in zip(new, old, strict=True)
    )


@dataclass(frozen=True, eq=False)
class _Renewal:
    """version: of the compensation that was current; calibration: None if the corrections do not change"""

    version: int
    judged: JudgedCompensation | None
    counts: FaceCounts
    calibration: dict[str, Any] | None


def _store(session: Session, key: IndexKey, renewal: _Renewal) -> bool:
    """Store a renewal. Returns False if the model is no longer the champion, or another process was faster."""
    collection = session.get(Collection, key.collection, with_for_update=True, populate_existing=True)
    deployment = session.get(Deployment, (key.collection, key.task), populate_existing=True)
    if collection is None or collection.created_at != key.collection_created_at or deployment is None:
        return False
    name = (key.collection, key.task, key.model_id)
    stored = session.get(StoredCompensation, name, populate_existing=True)
    if deployment.champion != key.model_id or (stored.version if stored else 0) != renewal.version:
        return False
    if stored is None:
        stored = StoredCompensation(collection_id=name[0], task=name[1], model_id=name[2], version=0, data=b"")
        session.add(stored)
    judged = renewal.judged
    stored.decisions = {source: describe_decision(one) for source, one in judged.decisions.items()} if judged else {}
    stored.faces, stored.measured_at = renewal.counts, now()
    if renewal.calibration is not None:
        stored.version += 1
        stored.data = judged.compensation.to_bytes() if judged else b""
        deployment.measurements = deployment.measurements | {key.model_id: renewal.calibration}
        collection.change += 1  # so that every follower reads it
    return True


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return a decision as values for JSON."""
    return asdict(decision)
