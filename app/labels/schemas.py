"""Bodies and answers of the routes for labels."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from app.db import examples
from app.db.field_types import CollectionName, Note, TaskName, Word
from app.errors import Invalid
from app.labels.cluster_schemas import SuggestedCluster
from ml.active_learning import MAX_SUGGESTIONS

MAX_LABELS = 100_000
MAX_LISTED_REFUSALS = 1_000
FACES: dict[str, Any] = {"face_a": examples.FACE, "face_b": examples.OTHER_FACE}
IN: dict[str, Any] = FACES | {"same": True}
OUT: dict[str, Any] = IN | {
    "id": 41,
    "task": "identity",
    "by": examples.LABELLER,
    "note": "",
    "created_at": examples.MOMENT,
    "withdrawn_at": None,
}
REFUSED: dict[str, Any] = {
    "index": 1,
    "code": "SameFace",
    "detail": f"face {examples.FACE} cannot be compared with itself",
}
PAIR: dict[str, Any] = FACES | {
    "subject_a": examples.SUBJECT,
    "subject_b": None,
    "distance": 0.68,
    "similarity": 51.3,
    "same_probability": 0.62,
    "expected_gain": 0.006,
}
CHANGED: dict[str, Any] = FACES | {"task": "identity", "before": True, "after": None}
OUTLOOK: dict[str, Any] = {"labels": 240, "next_labels": 50, "expected": 0.21, "at_most": 0.64, "enough": False}
SUGGESTIONS: dict[str, Any] = {"model": examples.MODEL, "pairs": [PAIR], "clusters": [], "outlook": OUTLOOK}


class LabelIn(BaseModel):
    """One person's statement that two faces are the same, or not, in the sense of the task."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN]})
    face_a: Word
    face_b: Word = Field(description="may be in another collection than face_a")
    task: TaskName = "identity"
    same: bool = Field(strict=True)
    by: Word | None = Field(None, description="the labeller; without it, the name or the id of the key")
    note: Note = ""


class LabelsIn(BaseModel):
    """Labels, which are validated one by one when they are used: to validate all at once takes too long."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"labels": [IN]}]})
    labels: list[SkipValidation[LabelIn]] = Field(min_length=1, max_length=MAX_LABELS)

    def iterate_labels(self) -> Iterator[LabelIn]:
        """Validate the labels. Raises Invalid for the first that is not valid."""
        for index, label in enumerate(self.labels):
            try:
                yield LabelIn.model_validate(label)
            except ValidationError as error:
                raise Invalid(describe_first_error(error, f"body.labels.{index}")) from error


class Refused(BaseModel):
    """A label that was refused. `index` counts from 0."""

    model_config = ConfigDict(json_schema_extra={"examples": [REFUSED]})
    index: int
    code: str
    detail: str


def describe_first_error(error: ValidationError, where: str = "") -> str:
    """Describe what is wrong with a label. where: the path of the label in the body"""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in (where, *first["loc"]) if part != "")
    return f"{path or 'line'}: {first['msg']}"


class AddedOut(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"accepted": 1, "refused": [REFUSED], "refused_count": 1}]}
    )
    accepted: int
    refused: list[Refused] = Field(description=f"the first {MAX_LISTED_REFUSALS:,} at most, by `index`")
    refused_count: int = Field(description="how many were refused in all")


class LabelOut(BaseModel):
    """A stored label."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: int
    face_a: str
    face_b: str
    task: str
    same: bool
    by: str
    note: str
    created_at: float
    withdrawn_at: float | None = Field(description="when this labeller's labels were withdrawn")


class LabelsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"labels": [OUT], "next_token": None}]})
    labels: list[LabelOut]
    next_token: str | None = None


class ChangedPair(BaseModel):
    """A pair that is decided otherwise than before; null: not decided."""

    model_config = ConfigDict(json_schema_extra={"examples": [CHANGED]})
    task: str
    face_a: str
    face_b: str
    before: bool | None = Field(description="whether they were the same")
    after: bool | None = Field(description="whether they are the same")


class WithdrawnOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"withdrawn": 17, "changed": 1, "pairs": [CHANGED]}]})
    withdrawn: int = Field(description="the number of labels that no longer count")
    changed: int = Field(description="the number of pairs within one collection that are decided otherwise")
    pairs: list[ChangedPair] = Field(description="those pairs, at most 1,000")


class SuggestIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"collection": examples.COLLECTION, "limit": 20}]}
    )
    collection: CollectionName
    task: TaskName = "identity"
    kind: Literal["pairs", "clusters"] = Field(
        "pairs", description="questions about two faces, or about groups of faces"
    )
    limit: int = Field(20, ge=1, le=MAX_SUGGESTIONS, strict=True)


class SuggestedPair(BaseModel):
    """Two faces of which a person should say whether they are the same."""

    model_config = ConfigDict(json_schema_extra={"examples": [PAIR]})
    face_a: str
    face_b: str
    subject_a: str | None
    subject_b: str | None
    distance: float
    similarity: float | None = Field(description="0 to 100; null while the model is not calibrated")
    same_probability: float = Field(description="0 to 1: how likely the answer is `same`, by the answers so far")
    expected_gain: float | None = Field(
        None, description="points of mAP that the answer is expected to be worth; null where `outlook` is"
    )


class OutlookOut(BaseModel):
    """What the next labels are worth, in points of mAP, from the last training that was measured on people held out."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUTLOOK]})
    labels: int = Field(description="labelled pairs that are decided now")
    next_labels: int = Field(description="number of further labels that the figures are about")
    expected: float = Field(description="expected gain")
    at_most: float = Field(
        description="bound, if returns diminish: the upper end of the last gain's interval, per label"
    )
    enough: bool = Field(description="whether the bound is at most 0.2 points: more labels are not worth the work")


class SuggestionsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [SUGGESTIONS]})
    model: str
    pairs: list[SuggestedPair] = Field(description="most valuable first; empty if clusters were requested")
    clusters: list[SuggestedCluster] = Field([], description="most valuable first; empty if pairs were requested")
    outlook: OutlookOut | None = Field(None, description="null until a training with labels was measured")
