"""Answers of the routes for examinations of a collection."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples

FindingKind = Literal["named_for_strangers", "duplicate", "wrong_name", "mixture", "poor_face", "damaged_face"]
FINDING: dict[str, Any] = {
    "kind": "duplicate",
    "subjects": ["ada", "ada-l"],
    "faces": [],
    "probability": 0.9984,
    "strangers_named_after": 0.0093,
    "strangers": None,
    "strangers_after": None,
    "advice": "If they are one person, merge 'ada-l' into 'ada'.",
}
REPORT: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "model": examples.BUILT_IN_MODEL,
    "faces": 2412,
    "subjects": 803,
    "subjects_with_one_face": 211,
    "fpir": 0.01,
    "strangers_named": 0.0121,
    "unmeasured_reason": None,
    "counts": {
        "named_for_strangers": 0,
        "duplicate": 1,
        "wrong_name": 0,
        "mixture": 0,
        "poor_face": 0,
        "damaged_face": 0,
    },
    "findings": [FINDING],
    "finished_at": examples.MOMENT,
}


class Finding(BaseModel):
    """A fault that an examination suspects."""

    model_config = ConfigDict(json_schema_extra={"examples": [FINDING]})
    kind: FindingKind = Field(
        description="named_for_strangers: a subject who is named for, or possible for, more strangers than the rate "
        "allows; duplicate: "
        "two subjects who seem to be one person; wrong_name: a face that seems to show another subject; mixture: a "
        "subject whose faces seem to show several people; poor_face: a face of poor quality; damaged_face: a face "
        "whose stored crop cannot be read"
    )
    subjects: list[str] = Field(description="the ids of the subjects; for wrong_name first the present one")
    faces: list[str] = Field(description="the ids of the faces that the advice is about")
    probability: float | None = Field(description="0 to 1: that a duplicate or a wrong name is one")
    strangers_named_after: float | None = Field(
        description="the share of strangers' searches that would name somebody once the advice is followed"
    )
    strangers: int | None = Field(
        None,
        description="for named_for_strangers: how many different strangers the subject was named, or possible, for",
    )
    strangers_after: int | None = Field(None, description="how many of them still are once the advice is followed")
    advice: str


class ExaminationOut(BaseModel):
    """What an examination found in a collection."""

    model_config = ConfigDict(json_schema_extra={"examples": [REPORT]})
    collection: str
    model: str
    faces: int = Field(description="gallery faces with a name")
    subjects: int
    subjects_with_one_face: int = Field(description="more photos of these people make their searches more reliable")
    fpir: float = Field(description="the collection's default rate of strangers named")
    strangers_named: float | None = Field(description="the share of strangers' searches that name somebody now")
    unmeasured_reason: str | None = Field(description="why `strangers_named` is not known")
    counts: dict[FindingKind, int] = Field(description="how many findings there are; of each kind the first are listed")
    findings: list[Finding]
    finished_at: float
