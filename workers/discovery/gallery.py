"""Read what a search for people starts from: the faces, their index, earlier clusters, and the settled labels."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import snapshot
from app.db.tables import BUILT_IN_TASK, ClusteredFace, Face, FaceCluster, PeopleSearch, Subject, now
from app.errors import Conflict
from app.galleries import label_consensus
from app.galleries.retention import may_be_used
from app.publishing.pointers import get_deployment
from app.serving import index_builder
from app.serving.compensation.store import read_compensation
from app.serving.index_builder import IndexKey
from ml.calibration import Calibration
from ml.identification.open_set import OpenSetCalibration
from ml.indexes.base import Index
from ml.model import Model
from ml.people_discovery.constraints import PairConstraints
from ml.people_discovery.discovery import KnownPeople
from ml.types import Ids
from workers.context import JobContext

NOBODY = -1


@dataclass(frozen=True, eq=False)
class ClusterGallery:
    """The gallery faces of a collection that have an embedding of the champion and may be used: see `may_be_used`.

    index: of the embeddings as searches compare them, corrected for their sources; it holds distractors too
    pks: (N,) rising; subjects: (N,) pk of the person, NOBODY without a name; clusters: (N,) pk of the cluster that the
        face lies in, NOBODY if in none, or in one with two faces that are labelled "not the same", which is made anew
    is_new: (N,) whether the face is looked at: it was enrolled or changed since the last search for people, or its
        cluster is made anew, or seems to show a person with a name
    strangers: how strangers score in searches here; None: it was not measured
    change: the collection's last change
    edits: cluster -> when somebody last merged or dismissed it, for those that were; dismissed: which were dismissed
    """

    collection: str
    model: Model
    calibration: Calibration
    index: Index
    pks: Ids
    subjects: Ids
    clusters: Ids
    is_new: NDArray[np.bool_]
    constraints: PairConstraints
    strangers: OpenSetCalibration | None
    change: int
    edits: Mapping[int, float]
    dismissed: Set[int]

    @property
    def is_named(self) -> NDArray[np.bool_]:
        """(N,)"""
        named: NDArray[np.bool_] = self.subjects != NOBODY
        return named

    @cached_property
    def known(self) -> KnownPeople:
        """The named people and the earlier clusters. Every other face starts alone."""
        kinds = np.where(self.is_named, 0, np.where(self.clusters != NOBODY, 1, 2))
        numbers = np.choose(kinds, [self.subjects, self.clusters, self.pks])
        _, start = np.unique(np.stack([kinds, numbers]), axis=1, return_inverse=True)
        return KnownPeople(start.ravel(), self.is_named, self.constraints)


def read_gallery(context: JobContext, collection_id: str, min_probability: float) -> ClusterGallery:
    """Read the gallery at one moment. Earlier clusters count where the last search had the same model and probability;
    otherwise only those that somebody edited do, and every face is new.

    Raises NotFound, Conflict (NotCalibrated), ml.Corrupt, ml.Unavailable.
    """
    resources = context.resources
    with snapshot(resources.database) as session:
        collection = get_collection(session, collection_id)
        deployment = get_deployment(session, collection_id, BUILT_IN_TASK)
        model = resources.models.get(deployment.champion)
        calibration = _find_calibration(model, deployment.measurements)
        compensation = read_compensation(session, collection_id, BUILT_IN_TASK, model.id)
        key = IndexKey(collection_id, BUILT_IN_TASK, model.id, collection.created_at, compensation.version)
        dim = index_builder.find_embedding_size(model, BUILT_IN_TASK)
        index = index_builder.build_index(
            session, key, dim, model.metric, resources.settings.index_device, compensation=compensation
        )
        last = session.get(PeopleSearch, collection_id)
        goes_on = last is not None and (last.model_id, last.min_probability) == (model.id, min_probability)
        faces = _read_faces(session, collection_id, only_edited=not goes_on)
        pks, subjects, clusters, changes, is_suggested = faces[:, np.isin(faces[0], index.ids())]
        (edits, dismissed), constraints = (
            _read_edits(session, collection_id),
            _read_constraints(session, collection_id, pks),
        )
        is_parted = _find_parted(clusters, constraints, edits)
        is_changed = changes > (last.change if last is not None and goes_on else NOBODY)
        return ClusterGallery(
            collection_id, model, calibration, index, pks, subjects, np.where(is_parted, NOBODY, clusters),
            is_parted | is_changed | (is_suggested > 0), constraints, _read_strangers(model, deployment.measurements),
            collection.change, edits, dismissed,
        )  # fmt: skip


def _find_parted(clusters: Ids, constraints: PairConstraints, edits: Mapping[int, float]) -> NDArray[np.bool_]:
    """Return which of (N,) faces lie in a cluster with two that are known to be two people.

    A cluster that somebody merged or dismissed stays as it was left.
    """
    first, second = clusters[constraints.cannot_link].T
    parted = first[(first == second) & (first != NOBODY) & ~np.isin(first, list(edits))]
    return np.isin(clusters, parted)


def _find_calibration(model: Model, measurements: dict[str, dict[str, object]]) -> Calibration:
    """Return the calibration of the model itself, or else that measured in the collection. Raises Conflict."""
    own = model.calibrations.get(BUILT_IN_TASK)
    measured = measurements.get(model.id, {}).get("calibration")
    if own is None and not isinstance(measured, dict):
        raise Conflict(
            "the model is not calibrated here yet: name some people with two or more faces first", code="NotCalibrated"
        )
    return own if own is not None else Calibration.from_dict(measured)  # type: ignore[arg-type]


def _read_strangers(model: Model, measurements: dict[str, dict[str, Any]]) -> OpenSetCalibration | None:
    measured = (measurements.get(model.id, {}).get("open_set") or {}).get("calibration")
    return OpenSetCalibration.from_dict(measured) if measured else None


def _read_faces(session: Session, collection: str, only_edited: bool) -> Ids:
    """Read (5, n) of the gallery's faces that may be used: pk, subject, cluster, last change, and whether the cluster
    seems to show a person with a name: 0 or 1."""
    is_suggested = FaceCluster.suggested_subject_pk.is_not(None)
    chosen = (
        select(Face.pk, Face.subject_pk, ClusteredFace.cluster_pk, Face.change, FaceCluster.edited_at, is_suggested)
        .outerjoin(ClusteredFace, ClusteredFace.face_pk == Face.pk)
        .outerjoin(FaceCluster, FaceCluster.pk == ClusteredFace.cluster_pk)
        .outerjoin(Subject, Subject.pk == Face.subject_pk)
        .where(Face.collection_id == collection, Face.role == "gallery", may_be_used(now()))
        .order_by(Face.pk)
    )
    rows = [
        (
            pk,
            NOBODY if subject is None else subject,
            NOBODY if cluster is None or (only_edited and edited_at is None) else cluster,
            change,
            bool(suggested),
        )
        for pk, subject, cluster, change, edited_at, suggested in session.execute(chosen)
    ]
    return np.array(rows, np.int64).reshape(-1, 5).T


def _read_edits(session: Session, collection: str) -> tuple[dict[int, float], set[int]]:
    """Read cluster -> when it was last edited, of those that were, and which clusters are dismissed."""
    columns = FaceCluster.pk, FaceCluster.edited_at, FaceCluster.state
    rows = session.execute(select(*columns).where(FaceCluster.collection_id == collection)).all()
    edits = {pk: at for pk, at, _ in rows if at is not None}
    return edits, {pk for pk, _, state in rows if state == "dismissed"}


def _read_constraints(session: Session, collection: str, pks: Ids) -> PairConstraints:
    settled = label_consensus.decide_collection(session, collection, BUILT_IN_TASK)
    here = np.isin(settled.pairs, pks).all(axis=1)
    positions, same = np.searchsorted(pks, settled.pairs[here]), settled.same[here]
    order = np.argsort(-settled.weights[here][same], kind="stable")
    return PairConstraints(positions[same][order], positions[~same])
