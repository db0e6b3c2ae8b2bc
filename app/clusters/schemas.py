"""Bodies and answers of the routes for clusters of faces without a name."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import MAX_ROW_ID, NewSubjectId
from app.deps.shared_schemas import SubjectRef
from ml.people_discovery.discovery import MIN_PROBABILITY

ClusterState = Literal["open", "dismissed"]
CLUSTER: dict[str, Any] = {
    "id": 12,
    "state": "open",
    "face_count": 9,
    "sample_faces": [examples.FACE, examples.OTHER_FACE],
    "probability": 0.9971,
    "suggested_subject": None,
    "created_at": examples.MOMENT,
}
NAMED: dict[str, Any] = {"subject": examples.SUBJECT, "faces": 9}


class DiscoverIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"min_probability": MIN_PROBABILITY}]})
    min_probability: float = Field(
        MIN_PROBABILITY,
        ge=0.5,
        lt=1,
        strict=True,
        description="how probable it must be that two single faces show one person; the limit is lower for groups",
    )


class ClusterOut(BaseModel):
    """Faces without a name that seem to show one person."""

    model_config = ConfigDict(json_schema_extra={"examples": [CLUSTER]})
    id: int
    state: ClusterState
    face_count: int = Field(description="its faces that have no name yet")
    sample_faces: list[str] = Field(description="the ids of some of its faces")
    probability: float = Field(description="0 to 1: the least probability at which two parts of it were joined")
    suggested_subject: SubjectRef | None = Field(description="a person with a name who seems to be the same")
    created_at: float


class ClustersOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"clusters": [CLUSTER], "next_token": None}]})
    clusters: list[ClusterOut]
    next_token: str | None = None


class ClusterFacesOut(BaseModel):
    """One page of the faces of a cluster."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cluster": CLUSTER, "faces": [examples.FACE], "next_token": None}]}
    )
    cluster: ClusterOut
    faces: list[str] = Field(description="ids of faces")
    next_token: str | None = None


class NameClusterIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"subject": examples.SUBJECT}]})
    subject: NewSubjectId = Field(description="the person; created if it is new")


class NamedOut(BaseModel):
    """The cluster is gone: its faces have a name now."""

    model_config = ConfigDict(json_schema_extra={"examples": [NAMED]})
    subject: str
    faces: int = Field(description="faces that were given to the subject")


class MergeClusterIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"into": 7}]})
    into: int = Field(ge=1, le=MAX_ROW_ID, strict=True, description="the id of the cluster that is kept")
