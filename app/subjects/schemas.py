"""Bodies and answers of the routes for subjects."""

from datetime import UTC, datetime
from typing import Any, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import ExternalId, Metadata, SubjectId
from app.db.tables import Subject

IN: dict[str, Any] = {"external_id": examples.EXTERNAL_ID, "metadata": {"desk": "north"}, "consent": True}
OUT: dict[str, Any] = IN | {
    "id": examples.SUBJECT,
    "retain_until": None,
    "face_count": 3,
    "created_at": examples.MOMENT,
}
ERASED: dict[str, Any] = {
    "subject": examples.SUBJECT,
    "faces": 3,
    "labels": 2,
    "embeddings": 6,
    "jobs": [f"/v1/jobs/{examples.JOB}"],
    "models": [examples.MODEL],
}


class SubjectIn(BaseModel):
    """Fields that are left out keep their values. A new subject without an external id gets its id as external id."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN]})
    external_id: ExternalId | None = None
    metadata: Metadata = Field({}, description="replaces all metadata of the subject")
    consent: bool | None = Field(None, description="whether the person has consented; null: unknown")
    retain_until: AwareDatetime | None = Field(None, description="null: no time limit")


class SubjectOut(BaseModel):
    """A person in a collection."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    external_id: str | None
    metadata: dict[str, Any]
    consent: bool | None
    retain_until: datetime | None
    face_count: int
    created_at: float

    @classmethod
    def of(cls, subject: Subject, face_count: int) -> Self:
        """Describe a row, whose times are in seconds since 1970."""
        until = subject.retain_until
        return cls(
            id=subject.id,
            external_id=subject.external_id,
            metadata=subject.attributes,
            consent=subject.consent,
            retain_until=None if until is None else datetime.fromtimestamp(until, UTC),
            face_count=face_count,
            created_at=subject.created_at,
        )


class SubjectsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"subjects": [OUT], "next_token": None}]})
    subjects: list[SubjectOut]
    next_token: str | None = None


class MergeIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"into": examples.SUBJECT}]})
    into: SubjectId = Field(description="the subject that is kept")


class ErasedOut(BaseModel):
    """How much was deleted. `jobs` are those that delete the photos and crops; `models` have learned from the faces,
    and `POST /v1/models/{model}:refit` makes each of them anew without the subject."""

    model_config = ConfigDict(json_schema_extra={"examples": [ERASED]})
    subject: str
    faces: int
    labels: int
    embeddings: int
    jobs: list[str]
    models: list[str]
