"""Store the clusters that a search for people returns."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from sqlalchemy import delete, exists, insert, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import writing
from app.db.tables import ClusteredFace, Face, FaceCluster, PeopleSearch, Subject, now
from ml.people_discovery.discovery import DiscoveredPeople
from workers.context import JobContext
from workers.discovery.gallery import NOBODY, ClusterGallery

CLUSTERS_PER_TRANSACTION = 1000
Item = TypeVar("Item")


@dataclass(frozen=True)
class NewCluster:
    """A cluster to store. kept: pk of the earlier cluster that it continues, or None; faces: pks, without a name"""

    kept: int | None
    faces: tuple[int, ...]
    probability: float
    subject_pk: int | None


def list_clusters(gallery: ClusterGallery, people: DiscoveredPeople) -> list[NewCluster]:
    """List the clusters with two or more faces, or with a face that seems to show a person with a name; the surest
    first. A cluster continues the earlier one of which it holds most faces, and among several rather one that was
    dismissed, whose faces are not to be offered again, or else one that was merged."""
    order = np.argsort(people.labels, kind="stable")
    starts = np.flatnonzero(np.diff(people.labels[order], prepend=-1))
    edited, dismissed = list(gallery.edits), list(gallery.dismissed)
    clusters = []
    for positions in np.split(order, starts[1:]) if len(order) else ():
        nameless = positions[~gallery.is_named[positions]]
        subjects = np.unique(gallery.subjects[positions[gallery.is_named[positions]]])
        subject = int(subjects[0]) if len(subjects) else None
        if len(nameless) < _count_needed_faces(subject):
            continue
        earlier, counts = np.unique(gallery.clusters[nameless], return_counts=True)
        earlier, counts = earlier[earlier != NOBODY], counts[earlier != NOBODY]
        rank = np.lexsort([counts, np.isin(earlier, edited), np.isin(earlier, dismissed)])
        kept = int(earlier[rank[-1]]) if len(earlier) else None
        probability = float(people.probabilities[people.labels[positions[0]]])
        clusters.append(NewCluster(kept, tuple(gallery.pks[nameless].tolist()), probability, subject))
    return sorted(clusters, key=lambda cluster: -cluster.probability)


def _count_needed_faces(subject: int | None) -> int:
    return 2 if subject is None else 1


def store_clusters(
    context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster], min_probability: float
) -> None:
    """Store the clusters in several transactions, and then that the search ended. Faces that were named or deleted
    meanwhile are left out, and those of clusters that were merged or dismissed meanwhile stay where they are. If the
    job ends before, the next search starts anew. Raises Interrupted, NotFound."""
    database, kept = context.resources.database, {cluster.kept for cluster in clusters}
    with writing(database) as session:
        get_collection(session, gallery.collection, lock=True)
        earlier = session.scalars(select(FaceCluster.pk).where(FaceCluster.collection_id == gallery.collection))
        for pks in _split([pk for pk in earlier if pk not in kept]):
            session.execute(delete(FaceCluster).where(FaceCluster.pk.in_(pks), FaceCluster.edited_at.is_(None)))
        session.execute(delete(PeopleSearch).where(PeopleSearch.collection_id == gallery.collection))
    for part in _split(clusters):
        context.check()
        with writing(database) as session:
            get_collection(session, gallery.collection, lock=True)
            _store_part(session, gallery, part)
    with writing(database) as session:
        get_collection(session, gallery.collection, lock=True)
        is_empty = ~exists().where(ClusteredFace.cluster_pk == FaceCluster.pk)
        session.execute(delete(FaceCluster).where(FaceCluster.collection_id == gallery.collection, is_empty))
        session.add(
            PeopleSearch(
                collection_id=gallery.collection, model_id=gallery.model.id, min_probability=min_probability,
                change=gallery.change, finished_at=now(),
            )
        )  # fmt: skip


def _store_part(session: Session, gallery: ClusterGallery, clusters: Sequence[NewCluster]) -> None:
    wanted = sorted({pk for cluster in clusters for pk in cluster.faces})
    movable, edited = _read_current_places(session, gallery.edits, wanted)
    subjects = {cluster.subject_pk for cluster in clusters if cluster.subject_pk is not None}
    subjects &= set(session.scalars(select(Subject.pk).where(Subject.pk.in_(subjects))))
    edited_clusters = set(edited.values())
    rows = _read_clusters(session, edited_clusters.union(c.kept for c in clusters if c.kept is not None))
    memberships = []
    for cluster in clusters:
        faces = [pk for pk in cluster.faces if pk in movable]
        row = _find_row(cluster, rows, edited)
        suggested = cluster.subject_pk if cluster.subject_pk in subjects else None
        if row is None and len(faces) < _count_needed_faces(suggested):
            continue
        if row is None:
            row = FaceCluster(collection_id=gallery.collection, probability=cluster.probability)
            session.add(row)
        row.probability = min(row.probability, cluster.probability)
        row.suggested_subject_pk = suggested or (row.suggested_subject_pk if row.pk in edited_clusters else None)
        session.flush()
        memberships += [{"face_pk": pk, "cluster_pk": row.pk} for pk in faces]
    for part in _split([pk for pk in wanted if pk not in edited]):
        session.execute(delete(ClusteredFace).where(ClusteredFace.face_pk.in_(part)))
    if memberships:
        session.execute(insert(ClusteredFace), memberships)


def _read_current_places(
    session: Session, edits: Mapping[int, float], faces: Sequence[int]
) -> tuple[set[int], dict[int, int]]:
    """Return which of the faces may be moved, and face -> cluster of those that lie in a cluster that was edited since.

    edits: see `ClusterGallery`. Times are only compared for equality: clocks of several hosts differ.
    """
    movable, edited = set[int](), dict[int, int]()
    nameless = (
        select(Face.pk, FaceCluster.pk, FaceCluster.edited_at)
        .outerjoin(ClusteredFace, ClusteredFace.face_pk == Face.pk)
        .outerjoin(FaceCluster, FaceCluster.pk == ClusteredFace.cluster_pk)
        .where(Face.subject_pk.is_(None))
    )
    for part in _split(faces):
        for pk, cluster, edited_at in session.execute(nameless.where(Face.pk.in_(part))):
            if edited_at is not None and edited_at != edits.get(cluster):
                edited[pk] = cluster
            else:
                movable.add(pk)
    return movable, edited


def _read_clusters(session: Session, pks: Collection[int]) -> dict[int, FaceCluster]:
    rows: dict[int, FaceCluster] = {}
    for part in _split(sorted(pks)):
        rows |= {row.pk: row for row in session.scalars(select(FaceCluster).where(FaceCluster.pk.in_(part)))}
    return rows


def _find_row(cluster: NewCluster, rows: Mapping[int, FaceCluster], edited: Mapping[int, int]) -> FaceCluster | None:
    """Find the stored cluster that this one continues: the earlier one, or else the one into which somebody merged most
    of its faces."""
    if cluster.kept is not None and cluster.kept in rows:
        return rows[cluster.kept]
    joined = Counter(edited[pk] for pk in cluster.faces if pk in edited).most_common(1)
    return rows[joined[0][0]] if joined else None


def _split(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), CLUSTERS_PER_TRANSACTION):
        yield items[start : start + CLUSTERS_PER_TRANSACTION]
