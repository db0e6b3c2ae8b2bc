"""Draw the map of a deployment's faces, and read it as figures, as a grid of counts and as points."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from app.atlases import service
from app.atlases.schemas import AtlasOut, Bins, DensityOut, DrawIn, Edge, PointLimit, PointsOut
from app.atlases.window import WindowEdges
from app.db.field_types import CollectionName, TaskName
from app.deps import ReadDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.problems import declare_problems
from app.deps.roles import OPERATOR, READER
from app.deps.scopes import COLLECTION

router = APIRouter(
    prefix="/v1/collections/{collection}/deployments/{task}/atlas", tags=["atlases"], route_class=AnswerRoute
)

CollectionId = Annotated[CollectionName, Path(alias="collection")]
TaskId = Annotated[TaskName, Path(alias="task")]


@dataclass(frozen=True)
class EdgesInQuery(WindowEdges):
    """The window that a request names."""

    x_min: Edge = None
    x_max: Edge = None
    y_min: Edge = None
    y_max: Edge = None


Edges = Annotated[EdgesInQuery, Depends()]


@router.post(
    ":draw",
    status_code=202,
    summary="Draw the atlas",
    openapi_extra={**OPERATOR, **COLLECTION, **declare_problems((409, "NotInstalled"))} | audit_as("atlas.draw"),
)
def draw_atlas(
    collection: CollectionId, task: TaskId, session: WriteDep, response: Response, body: DrawIn | None = None
) -> JobOut:
    """Starts a job that draws the map of all faces anew. The old map is shown until the new one is finished.

    From then on the map is kept up to date: new faces are placed on it within a minute, and it is drawn again when
    another model serves or the gallery has grown or shrunk by half. With fewer than three different faces the job
    fails with `NothingToMap`.
    """
    return service.start_drawing(session, collection, task, body or DrawIn(), response)


@router.get("", summary="Look at the atlas", openapi_extra=READER | COLLECTION)
def get_atlas(collection: CollectionId, task: TaskId, session: ReadDep) -> AtlasOut:
    """What the map shows, and how far it can be believed. 404 if none was drawn."""
    return service.describe_atlas(session, collection, task)


@router.get("/density", summary="Count the faces in a grid", openapi_extra=READER | COLLECTION)
def get_density(collection: CollectionId, task: TaskId, session: ReadDep, edges: Edges, bins: Bins = 64) -> DensityOut:
    """How many faces lie in each cell of a grid over a window, by default over the whole map."""
    return service.count_faces(session, collection, task, edges, bins)


@router.get("/points", summary="List faces on the atlas", openapi_extra=READER | COLLECTION)
def list_points(
    collection: CollectionId, task: TaskId, session: ReadDep, edges: Edges, limit: PointLimit = 1000
) -> PointsOut:
    """Faces in a window, by default on the whole map. If there are more than `limit`, an even sample of them; the
    points of a window stay in the sample when it gets smaller."""
    return service.list_points(session, collection, task, edges, limit)


@router.delete(
    "", status_code=204, summary="Delete the atlas", openapi_extra=OPERATOR | COLLECTION | audit_as("atlas.delete")
)
def delete_atlas(collection: CollectionId, task: TaskId, session: WriteDep) -> None:
    """Deletes all coordinates. The map is no longer kept up to date."""
    service.delete_atlas(session, collection, task)
