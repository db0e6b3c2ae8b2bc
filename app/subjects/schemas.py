"""Bodies and answers of the routes for subjects."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from app.db import examples
from app.db.field_types import ExternalId, Metadata, SubjectId
from app.db.tables import Subject

FIRST_MOMENT, LAST_MOMENT = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
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
    "coordinates": 3,
    "jobs": [f"/v1/jobs/{examples.JOB}"],
    "models": [examples.MODEL],
    "erasure": f"/v1/erasures/{examples.ERASURE}",
}


def _check_is_date(value: Any) -> Any:
    """Refuse numbers, which would be taken for seconds since 1970; the document says `date-time`."""
    if isinstance(value, str) and not value.replace(".", "").lstrip("+-").isdigit():
        return value
    raise ValueError("must be a date with a time and a zone, such as 2030-01-01T00:00:00Z")


def _check_has_utc(moment: datetime) -> datetime:
    """Refuse moments that have no date in UTC, or none once they are rounded to a number of seconds."""
    if FIRST_MOMENT <= moment <= LAST_MOMENT:
        return moment
    raise ValueError(f"must be from {FIRST_MOMENT.isoformat()} to {LAST_MOMENT.isoformat()}")


class SubjectIn(BaseModel):
    """Fields that are left out keep their values. A new subject without an external id gets its id as external id."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN]})
    external_id: ExternalId | None = None
    metadata: Metadata = Field({}, description="replaces all metadata of the subject")
    consent: bool | None = Field(None, strict=True, description="whether the person has consented; null: unknown")
    retain_until: Annotated[AwareDatetime, BeforeValidator(_check_is_date), AfterValidator(_check_has_utc)] | None = (
        Field(None, description="in UTC within the years 1 to 9999; null: no time limit")
    )


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
    """How much was deleted. `jobs` are those that erase the rest; `models` have learned from the faces, and
    `POST /v1/models/{model}:refit` makes each of them anew without the subject."""

    model_config = ConfigDict(json_schema_extra={"examples": [ERASED]})
    subject: str
    faces: int
    labels: int
    embeddings: int
    coordinates: int = Field(description="places on the atlases of the collection")
    jobs: list[str]
    models: list[str]
    erasure: str = Field(description="the path of the receipt, which becomes final when nothing is left")
