from pydantic import BaseModel, ConfigDict, Field

from app.deps.words import CollectionName, Note, TaskName, Word

FACES = {
    "face_a": "7f9c24e5-0c1d-4f0e-9a53-5b1c6c1d2e3f",
    "face_b": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
}


class LabelIn(BaseModel):
    """Somebody says of two faces that they are the same, or not, as the task understands it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{**FACES, "same": True}]})
    face_a: Word
    face_b: Word = Field(description="may lie in another collection than face_a")
    task: TaskName = "identity"
    same: bool
    by: Word | None = Field(None, description="who says so; without it, the name of the key, or its id")
    note: Note = ""


class LabelsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    labels: list[LabelIn] = Field(min_length=1, max_length=100_000)


class Refused(BaseModel):
    """One that was not taken. `index` counts from 0."""

    index: int
    code: str
    detail: str


class AddedOut(BaseModel):
    accepted: int
    refused: list[Refused]


class LabelOut(BaseModel):
    id: int
    face_a: str
    face_b: str
    task: str
    same: bool
    by: str
    note: str
    created_at: float
    withdrawn_at: float | None = Field(description="when all of this labeller's labels were taken back")


class LabelsOut(BaseModel):
    labels: list[LabelOut]
    next_token: str | None = None


class WithdrawnOut(BaseModel):
    withdrawn: int


class SuggestIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"collection": "staff", "limit": 20}]})
    collection: CollectionName
    task: TaskName = "identity"
    limit: int = Field(20, ge=1, le=200)


class SuggestedPair(BaseModel):
    """Two faces of which the model is least sure. `similarity` 50: it cannot tell at all."""

    face_a: str
    face_b: str
    subject_a: str | None
    subject_b: str | None
    distance: float
    similarity: float | None = Field(description="0 to 100; none as long as the model is not calibrated")


class SuggestionsOut(BaseModel):
    model: str
    pairs: list[SuggestedPair]
