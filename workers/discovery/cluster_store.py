"""Store the clusters that a search for people returns."""

from collections.abc import Iterator, Sequence
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
    first. A cluster continues the earlier one of which it holds most faces."""
    order = np.argsort(people.labels, kind="stable")
    starts = np.flatnonzero(np.diff(people.labels[order], prepend=-1))
    clusters = []
    for positions in np.split(order, starts[1:]) if len(order) else ():
        nameless = positions[~gallery.is_named[positions]]
        subjects = np.unique(gallery.subjects[positions[gallery.is_named[positions]]])
        subject = int(subjects[0]) if len(subjects) else None
        if len(nameless) < (2 if subject is None else 1):
            continue
        earlier, counts = np.unique(gallery.clusters[nameless], return_counts=True)
        earlier, counts = earlier[earlier != NOBODY], counts[earlier != NOBODY]
        kept = int(earlier[counts.argmax()]) if len(earlier) else None
        probability = float(people.probabilities[people.labels[positions[0]]])
        clusters.append(NewCluster(kept, tuple(gallery.pks[nameless].tolist()), probability, subject))
    return sorted(clusters, key=lambda cluster: -cluster.probability)


def store_clusters(
    context: JobContext, gallery: ClusterGallery, clusters: Sequence[NewCluster], min_probability: float
) -> None:
    """Store the clusters in several transactions, and then that the search ended. Faces that were named or deleted
    meanwhile are left out. If the job ends before, the next search starts anew. Raises Interrupted, NotFound."""
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
            _store_part(session, gallery.collection, part)
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


def _store_part(session: Session, collection: str, clusters: Sequence[NewCluster]) -> None:
    wanted = sorted({pk for cluster in clusters for pk in cluster.faces})
    nameless: set[int] = set()
    for part in _split(wanted):
        nameless.update(session.scalars(select(Face.pk).where(Face.pk.in_(part), Face.subject_pk.is_(None))))
    subjects = {cluster.subject_pk for cluster in clusters if cluster.subject_pk is not None}
    subjects &= set(session.scalars(select(Subject.pk).where(Subject.pk.in_(subjects))))
    kept = session.scalars(select(FaceCluster).where(FaceCluster.pk.in_([c.kept for c in clusters if c.kept])))
    rows = {row.pk: row for row in kept}
    memberships = []
    for cluster in clusters:
        row = rows.get(cluster.kept or NOBODY)
        if row is None:
            row = FaceCluster(collection_id=collection, probability=cluster.probability)
            session.add(row)
        row.probability = min(row.probability, cluster.probability)
        row.suggested_subject_pk = cluster.subject_pk if cluster.subject_pk in subjects else None
        session.flush()
        memberships += [{"face_pk": pk, "cluster_pk": row.pk} for pk in cluster.faces if pk in nameless]
    for part in _split(wanted):
        session.execute(delete(ClusteredFace).where(ClusteredFace.face_pk.in_(part)))
    if memberships:
        session.execute(insert(ClusteredFace), memberships)


def _split(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), CLUSTERS_PER_TRANSACTION):
        yield items[start : start + CLUSTERS_PER_TRANSACTION]
