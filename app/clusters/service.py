"""Start a search for people, and list, name, merge and dismiss the clusters that it found."""

from collections.abc import Mapping, Sequence

from fastapi import Response
from sqlalchemy import ColumnElement, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session

from app.clusters.schemas import (
    ClusterFacesOut,
    ClusterOut,
    ClustersOut,
    ClusterState,
    DiscoverIn,
    NamedOut,
)
from app.db.id_lists import select_ids
from app.db.lookups import get_collection
from app.db.statement_limits import wait_for_turn
from app.db.tables import BUILT_IN_TASK, ClusteredFace, Face, FaceCluster, Subject, now
from app.db.visibility import ALL_ROWS
from app.deps.job_response import JobOut, point_to_job
from app.deps.paging import read_page
from app.deps.shared_schemas import SubjectRef
from app.errors import Invalid, NotFound
from app.galleries import subjects
from app.galleries.retention import check_enrolment, may_be_used
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import DiscoverPeople

MAX_SAMPLE_FACES = 6


def start_discovery(session: Session, collection: str, body: DiscoverIn, response: Response) -> JobOut:
    """Enqueue the search for people. Raises NotFound."""
    get_collection(session, collection)
    pointers.get_deployment(session, collection, BUILT_IN_TASK)
    job = enqueue(session, DiscoverPeople(collection=collection, min_probability=body.min_probability))
    point_to_job(response, job)
    return JobOut.of(job)


def list_clusters(session: Session, collection: str, state: ClusterState, limit: int, token: str | None) -> ClustersOut:
    """List the clusters that have a face that counts, one page of them. Raises NotFound, Invalid, Busy."""
    get_collection(session, collection)
    where = (FaceCluster.collection_id == collection, FaceCluster.state == state, _has_faces())
    with wait_for_turn(session):
        rows, next_token = read_page(session, FaceCluster, FaceCluster.pk, limit, token, *where)
        pks = [row.pk for row in rows]
        counts = _count_faces(session, pks)
        session.rollback()  # to count them may take seconds: who may be named is read after it
        get_collection(session, collection)
        chosen = select(FaceCluster).where(FaceCluster.pk.in_(select_ids(session, pks)), FaceCluster.state == state)
        clusters = session.scalars(chosen.order_by(FaceCluster.pk)).all()
        return ClustersOut(clusters=_describe_clusters(session, clusters, counts), next_token=next_token)


def list_faces(session: Session, collection: str, cluster_id: int, limit: int, token: str | None) -> ClusterFacesOut:
    """Describe a cluster, and list one page of its faces. Raises NotFound, Invalid, Busy."""
    with wait_for_turn(session):
        counts = _count_faces(session, [_get_cluster(session, collection, cluster_id).pk])
        session.rollback()  # as above
        cluster = _get_cluster(session, collection, cluster_id)
        is_offered = exists().where(Face.pk == ClusteredFace.face_pk, _IS_OFFERED)
        where = (ClusteredFace.cluster_pk == cluster.pk, is_offered)
        members, next_token = read_page(session, ClusteredFace, ClusteredFace.face_pk, limit, token, *where)
        pks = [member.face_pk for member in members]
        named = select(Face.pk, Face.face_id).where(Face.pk.in_(pks))
        face_ids = dict(session.execute(named, execution_options=ALL_ROWS).all())
        [described] = _describe_clusters(session, [cluster], counts)
        faces = [face_ids[pk] for pk in pks if pk in face_ids]
        return ClusterFacesOut(cluster=described, faces=faces, next_token=next_token)


def name_cluster(
    session: Session, collection: str, cluster_id: int, subject_id: str, *, needs_consent: bool
) -> NamedOut:
    """Give the faces of a cluster to a subject, which is created if it is new, and delete the cluster.

    needs_consent: whether the subject needs recorded consent
    Raises NotFound, Conflict.
    """
    locked = pointers.lock_collection(session, collection)
    cluster = _get_cluster(session, collection, cluster_id)
    subject = subjects.get_or_create_subject(session, locked, subject_id)
    check_enrolment(subject, needs_consent)
    locked.change += 1
    members = select(ClusteredFace.face_pk).where(ClusteredFace.cluster_pk == cluster.pk)
    named = subjects.name_faces(session, locked, subject, Face.pk.in_(members), _IS_OFFERED)
    session.delete(cluster)
    session.flush()
    return NamedOut(subject=subject.id, faces=named)


def merge_cluster(session: Session, collection: str, cluster_id: int, into: int) -> ClusterOut:
    """Move the faces of a cluster to another one, and delete it. Raises NotFound, or Invalid if both are the same."""
    pointers.lock_collection(session, collection)
    merged, kept = _get_cluster(session, collection, cluster_id), _get_cluster(session, collection, into)
    if merged.pk == kept.pk:
        raise Invalid("a cluster cannot be merged into itself")
    members = update(ClusteredFace).where(ClusteredFace.cluster_pk == merged.pk)
    session.execute(members.values(cluster_pk=kept.pk))
    session.execute(delete(FaceCluster).where(FaceCluster.pk == merged.pk))
    kept.edited_at = now()
    kept.suggested_subject_pk = kept.suggested_subject_pk or merged.suggested_subject_pk
    session.flush()
    return _describe_clusters(session, [kept], _count_faces(session, [kept.pk]))[0]


def dismiss_cluster(session: Session, collection: str, cluster_id: int) -> ClusterOut:
    """Mark a cluster so that it is not offered again. Raises NotFound."""
    pointers.lock_collection(session, collection)
    cluster = _get_cluster(session, collection, cluster_id)
    cluster.state, cluster.edited_at = "dismissed", now()
    session.flush()
    return _describe_clusters(session, [cluster], _count_faces(session, [cluster.pk]))[0]


_IS_OFFERED: ColumnElement[bool] = and_(func.coalesce(Face.subject_pk, 0) == 0, Face.role == "gallery")
"""Whether a face of a cluster still counts: it has no name, and was not made a distractor.

Not `IS NULL`: SQLite would look in the index of subjects for all faces without one, before those of a cluster.
"""


def _has_faces() -> ColumnElement[bool]:
    member = exists().where(ClusteredFace.cluster_pk == FaceCluster.pk, Face.pk == ClusteredFace.face_pk, _IS_OFFERED)
    return member.correlate(FaceCluster)


def _get_cluster(session: Session, collection: str, cluster_id: int) -> FaceCluster:
    cluster = session.get(FaceCluster, cluster_id)
    if cluster is None or cluster.collection_id != get_collection(session, collection).id:
        raise NotFound(f"no cluster {cluster_id} in collection {collection!r}")
    return cluster


# whoever sees a cluster sees its faces and its subject; restricted to their collection, SQLite would read all of it


def _count_faces(session: Session, pks: Sequence[int]) -> dict[int, int]:
    """Return pk of a cluster -> the number of its faces that count."""
    members = select(ClusteredFace.cluster_pk, func.count()).join(Face, Face.pk == ClusteredFace.face_pk)
    members = members.where(ClusteredFace.cluster_pk.in_(pks), _IS_OFFERED).group_by(ClusteredFace.cluster_pk)
    return dict(session.execute(members, execution_options=ALL_ROWS).all())


def _list_samples(session: Session, pk: int) -> list[str]:
    """List the first faces of a cluster: not of all in one statement, which would read all of their faces."""
    faces = select(Face.face_id).join(ClusteredFace, Face.pk == ClusteredFace.face_pk)
    faces = faces.where(ClusteredFace.cluster_pk == pk, _IS_OFFERED).order_by(ClusteredFace.face_pk)
    return list(session.scalars(faces.limit(MAX_SAMPLE_FACES), execution_options=ALL_ROWS))


def _describe_clusters(
    session: Session, clusters: Sequence[FaceCluster], counts: Mapping[int, int]
) -> list[ClusterOut]:
    """counts: of `_count_faces`"""
    suggested = {cluster.suggested_subject_pk for cluster in clusters} - {None}
    usable = select(Subject).where(Subject.pk.in_(suggested), may_be_used(now()))
    people = {s.pk: s for s in session.scalars(usable, execution_options=ALL_ROWS)}
    samples = (_list_samples(session, cluster.pk) for cluster in clusters)
    return [_describe(one, counts.get(one.pk, 0), faces, people) for one, faces in zip(clusters, samples, strict=True)]


def _describe(cluster: FaceCluster, face_count: int, sample_faces: list[str], people: dict[int, Subject]) -> ClusterOut:
    subject = people.get(cluster.suggested_subject_pk or 0)
    return ClusterOut(
        id=cluster.pk,
        state="dismissed" if cluster.state == "dismissed" else "open",
        face_count=face_count,
        sample_faces=sample_faces,
        probability=cluster.probability,
        suggested_subject=subject and SubjectRef(id=subject.id, external_id=subject.external_id),
        created_at=cluster.created_at,
    )
