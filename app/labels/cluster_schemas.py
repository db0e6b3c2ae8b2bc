"""Bodies and answers of the routes for questions about groups of faces."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import Note, TaskName, Word
from ml.active_learning import MAX_CLUSTER_FACES, MIN_CLUSTER_FACES

MAX_ANSWER_FACES = 100
THIRD_FACE = "c0f5a9d2-7c0e-4a53-9d58-3f1f6a0e6f11"
ANSWER: dict[str, Any] = {"members": [examples.FACE, examples.OTHER_FACE], "outliers": [THIRD_FACE]}
CLUSTER: dict[str, Any] = {
    "faces": [
        {"face_id": examples.FACE, "subject_id": examples.SUBJECT},
        {"face_id": examples.OTHER_FACE, "subject_id": None},
        {"face_id": THIRD_FACE, "subject_id": None},
    ],
    "same_probability": 0.71,
    "expected_gain": 0.012,
}
CONTRADICTION: dict[str, Any] = {"face_a": examples.FACE, "face_b": THIRD_FACE, "same": False}


class ClusterFace(BaseModel):
    """A face of a cluster, and the subject whose name it has."""

    model_config = ConfigDict(json_schema_extra={"examples": [CLUSTER["faces"][0]]})
    face_id: str
    subject_id: str | None


class SuggestedCluster(BaseModel):
    """Faces that may be one person: are they, and which of them do not belong?"""

    model_config = ConfigDict(json_schema_extra={"examples": [CLUSTER]})
    faces: list[ClusterFace] = Field(min_length=MIN_CLUSTER_FACES, max_length=MAX_CLUSTER_FACES)
    same_probability: float = Field(description="0 to 1: mean over the pairs of the cluster that no label decides")
    expected_gain: float | None = Field(
        None, description="points of mAP that the answer is expected to be worth; null where nothing was measured"
    )


class ClusterAnswerIn(BaseModel):
    """An answer to the question which of some faces are one person."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [ANSWER]})
    members: list[Word] = Field(min_length=1, max_length=MAX_ANSWER_FACES, description="faces of one person")
    outliers: list[Word] = Field(
        [], max_length=MAX_ANSWER_FACES, description="faces of other people; of each other they say nothing"
    )
    task: TaskName = "identity"
    by: Word | None = Field(None, description="the labeller; without it, the name or the id of the key")
    note: Note = ""


class Contradiction(BaseModel):
    """A pair about which the answer differs from other labels, or from what follows from them."""

    model_config = ConfigDict(json_schema_extra={"examples": [CONTRADICTION]})
    face_a: str
    face_b: str
    same: bool = Field(description="what this answer says")


class ClusterAnswerOut(BaseModel):
    """The number of pair labels that were stored. Contradicting ones are stored too; the majority decides."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"accepted": 3, "contradictions": [CONTRADICTION]}]})
    accepted: int
    contradictions: list[Contradiction]
