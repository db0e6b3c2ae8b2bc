"""Find people among faces without a name: start the search, and list, name, merge and dismiss clusters."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from app.clusters import service
from app.clusters.schemas import (
    ClusterFacesOut,
    ClusterOut,
    ClustersOut,
    ClusterState,
    DiscoverIn,
    MergeClusterIn,
    NameClusterIn,
    NamedOut,
)
from app.db.field_types import MAX_ROW_ID, CollectionName
from app.deps import Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.problems import declare_problems
from app.deps.roles import OPERATOR, READER
from app.deps.scopes import COLLECTION

NAMING_PROBLEMS = declare_problems((409, "EnrolmentNotAllowed"))
router = APIRouter(prefix="/v1/collections/{collection}/clusters", tags=["clusters"], route_class=AnswerRoute)

CollectionId = Annotated[CollectionName, Path(alias="collection")]
ClusterId = Annotated[int, Path(alias="cluster", ge=1, le=MAX_ROW_ID, description="a cluster's id", examples=[12])]
State = Annotated[ClusterState, Query(description="open: offered to be named; dismissed: not offered again")]


@router.post(
    ":discover",
    status_code=202,
    summary="Find people among faces without a name",
    openapi_extra=OPERATOR | COLLECTION | audit_as("cluster.discover"),
)
def discover(collection: CollectionId, session: WriteDep, response: Response, body: DiscoverIn | None = None) -> JobOut:
    """Starts a job that groups the gallery's faces without a name into clusters of one person.

    A later search only looks at new and changed faces, and at clusters with two that are "not the same", unless the
    model or `min_probability` is another. Such faces share a cluster only if somebody merged or dismissed it. If the
    model is not calibrated, the job fails with `NotCalibrated`.
    """
    return service.start_discovery(session, collection, body or DiscoverIn(), response)


@router.get("", summary="List clusters", openapi_extra=READER | COLLECTION)
def list_clusters(
    collection: CollectionId, session: ReadDep, state: State = "open", limit: Limit = 100, next_token: NextToken = None
) -> ClustersOut:
    """Clusters of the last search, each with some of its faces. Of the clusters that one search found, the surest come
    first. A cluster with a `suggested_subject` may have a single face."""
    return service.list_clusters(session, collection, state, limit, next_token)


@router.get("/{cluster}", summary="Look at a cluster", openapi_extra=READER | COLLECTION)
def get_cluster(
    collection: CollectionId, cluster: ClusterId, session: ReadDep, limit: Limit = 100, next_token: NextToken = None
) -> ClusterFacesOut:
    """The cluster and all of its faces, page by page."""
    return service.list_faces(session, collection, cluster, limit, next_token)


@router.post(
    "/{cluster}:name",
    summary="Name a cluster",
    openapi_extra=OPERATOR | COLLECTION | NAMING_PROBLEMS | audit_as("cluster.name"),
)
def name_cluster(
    collection: CollectionId, cluster: ClusterId, body: NameClusterIn, session: WriteDep, resources: ResourcesDep
) -> NamedOut:
    """Gives the faces of the cluster to a subject. Searches name them within a second. The cluster is deleted."""
    needs_consent = resources.settings.require_consent
    return service.name_cluster(session, collection, cluster, body.subject, needs_consent=needs_consent)


@router.post(
    "/{cluster}:merge",
    summary="Merge a cluster into another",
    openapi_extra=OPERATOR | COLLECTION | audit_as("cluster.merge"),
)
def merge_cluster(collection: CollectionId, cluster: ClusterId, body: MergeClusterIn, session: WriteDep) -> ClusterOut:
    """Moves all faces to the other cluster and deletes this one. Later searches keep the faces together."""
    return service.merge_cluster(session, collection, cluster, body.into)


@router.post(
    "/{cluster}:dismiss", summary="Dismiss a cluster", openapi_extra=OPERATOR | COLLECTION | audit_as("cluster.dismiss")
)
def dismiss_cluster(collection: CollectionId, cluster: ClusterId, session: WriteDep) -> ClusterOut:
    """The cluster is not offered again, also when later searches add new faces to it."""
    return service.dismiss_cluster(session, collection, cluster)
