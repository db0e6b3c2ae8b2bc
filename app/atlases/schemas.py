"""Bodies, parameters and answers of the routes for atlases."""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.deps.shared_schemas import SubjectRef

AtlasMethod = Literal["pca", "tsne"]
MAX_BINS = 256
MAX_POINTS = 10_000
NEIGHBOURS: dict[str, Any] = {
    "neighbours": 10, "kept": 0.02, "chance": 0.0005, "trustworthiness": 0.63, "faces": 20_000, "queries": 1_000,
}  # fmt: skip
BOUNDS: dict[str, Any] = {"x_min": -0.71, "x_max": 0.68, "y_min": -0.55, "y_max": 0.62}
ATLAS: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "task": "identity",
    "model": examples.MODEL,
    "version": 3,
    "method": "pca",
    "seed": 0,
    "faces": 24_000,
    "bounds": BOUNDS,
    "explained_variance": [0.051, 0.042],
    "neighbours": NEIGHBOURS,
    "is_current": True,
    "finished_at": examples.MOMENT,
}
DENSITY: dict[str, Any] = {"window": BOUNDS, "faces": 5, "counts": [[0, 1], [3, 1]]}
POINT: dict[str, Any] = {
    "face_id": examples.FACE, "x": 0.12, "y": -0.31, "role": "gallery", "source": "gate-2",
    "subject": {"id": examples.SUBJECT, "external_id": examples.EXTERNAL_ID}, "cluster": None,
}  # fmt: skip
POINTS: dict[str, Any] = {"window": BOUNDS, "faces": 24_000, "points": [POINT]}

Edge = Annotated[float | None, Query(allow_inf_nan=False, description="an edge of the window", examples=[-0.5])]
Bins = Annotated[int, Query(ge=1, le=MAX_BINS, description="cells of the grid along each axis")]
PointLimit = Annotated[int, Query(ge=1, le=MAX_POINTS, description="the largest number of points to return")]


class DrawIn(BaseModel):
    """How to draw the atlas."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"method": "pca", "seed": 0}]})
    method: AtlasMethod = Field(
        "pca",
        description="pca: the two directions in which the embeddings vary most; tsne: keeps neighbours together, takes "
        "minutes, and needs the package openTSNE on the server",
    )
    seed: int = Field(
        0, ge=0, lt=2**31, strict=True, description="of everything random; the same seed and faces give the same map"
    )


class Window(BaseModel):
    """A part of the map."""

    model_config = ConfigDict(json_schema_extra={"examples": [BOUNDS]})
    x_min: float
    x_max: float
    y_min: float
    y_max: float


class NeighboursOut(BaseModel):
    """How well neighbours survive on the map, measured on a sample when the map was fitted."""

    model_config = ConfigDict(json_schema_extra={"examples": [NEIGHBOURS]})
    neighbours: int = Field(description="k: how many nearest faces were compared")
    kept: float = Field(description="share of a face's k nearest faces that are among its k nearest on the map")
    chance: float = Field(description="what `kept` would be if faces lay on the map at random")
    trustworthiness: float = Field(
        description="0 to 1 (Venna and Kaski); less than 1 where faces lie together on the map that are not alike"
    )
    faces: int = Field(description="faces in the sample")
    queries: int = Field(description="faces of the sample whose neighbours were compared")


class AtlasOut(BaseModel):
    """The map of a deployment's faces."""

    model_config = ConfigDict(json_schema_extra={"examples": [ATLAS]})
    collection: str
    task: str
    model: str = Field(description="the model whose embeddings it shows")
    version: int = Field(description="the version of the deployment that it shows")
    method: AtlasMethod
    seed: int
    faces: int = Field(description="faces on the map")
    bounds: Window | None = Field(description="the smallest window that holds all faces; null: no face is left")
    explained_variance: list[float] | None = Field(
        description="for pca: the share of the variance that each axis shows; the rest cannot be seen on the map"
    )
    neighbours: NeighboursOut
    is_current: bool = Field(description="whether the model still serves and all changes are on the map")
    finished_at: float


class DensityOut(BaseModel):
    """How many faces lie in each cell of a grid."""

    model_config = ConfigDict(json_schema_extra={"examples": [DENSITY]})
    window: Window
    faces: int = Field(description="faces in the window")
    counts: list[list[int]] = Field(description="a list for each row of cells, the lowest y first; in it, rising x")


class PointOut(BaseModel):
    """A face on the map."""

    model_config = ConfigDict(json_schema_extra={"examples": [POINT]})
    face_id: str
    x: float
    y: float
    role: Literal["gallery", "distractor"]
    source: str | None
    subject: SubjectRef | None
    cluster: int | None = Field(description="the id of its cluster, if it has no name and lies in one")


class PointsOut(BaseModel):
    """Faces in a window: all of them, or an even sample."""

    model_config = ConfigDict(json_schema_extra={"examples": [POINTS]})
    window: Window
    faces: int = Field(description="faces in the window; if these are more than the points, the points are a sample")
    points: list[PointOut]
