"""Bodies and answers of the routes for training policies."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db import examples
from app.db.field_types import MAX_INTEGER, Publication, ScheduleHours, TimeOfDay, Trigger
from app.learning.training_policy import State
from app.learning.training_request import TrainingFields

LAST: dict[str, Any] = {
    "training": examples.TRAINING, "job": examples.JOB, "started_at": examples.MOMENT, "labels": 240,
    "state": "succeeded", "model": examples.MODEL, "better": True,
}  # fmt: skip
POLICY: dict[str, Any] = {
    "trigger": "schedule", "hours": 24.0, "at": "03:00", "labels": 100, "max_trainings": 1, "max_seconds": 3600.0,
    "publish": "if_better", "training": {"method": "auto"},
}  # fmt: skip
OUT: dict[str, Any] = POLICY | {
    "collection": examples.COLLECTION, "task": "identity", "version": 2, "state": "scheduled",
    "detail": "the time has not come", "next_at": examples.MOMENT, "last": LAST,
}  # fmt: skip


class TrainingPolicyIn(BaseModel):
    """The fields of a training policy that can be changed."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [POLICY, {"trigger": "labels", "labels": 200, "max_trainings": 2}, {"trigger": "on_demand"}]
        },
    )
    trigger: Trigger = Field("on_demand", description="what starts a training: a caller, a schedule, or further labels")
    hours: ScheduleHours = Field(24.0, description="schedule: hours between two trainings")
    at: TimeOfDay | None = Field(None, description="schedule: the time of day in UTC, HH:MM; null: any")
    labels: int = Field(
        100, ge=1, le=10_000_000, strict=True, description="labels: how many further settled pairs start a training"
    )
    max_trainings: int | None = Field(
        None,
        ge=0,
        le=MAX_INTEGER,
        strict=True,
        description="trainings of the collection in 24 hours, whoever asked; 0: none by itself; null: any",
    )
    max_seconds: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        strict=True,
        description="seconds that these trainings may run; 0: none; null: any",
    )
    publish: Publication = Field(
        "never",
        description="never: a candidate waits for an administrator; if_better: it is published through the gate if it "
        "is better on people held out",
    )
    training: TrainingFields = Field(TrainingFields(), description="how to train: the fields of `POST /v1/trainings`")

    @model_validator(mode="after")
    def _check_stated(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"state at least one of: {', '.join(type(self).model_fields)}")
        return self


class LastTrainingOut(BaseModel):
    """The last training that the policy started."""

    model_config = ConfigDict(json_schema_extra={"examples": [LAST]})
    training: str
    job: str | None
    started_at: float
    labels: int = Field(description="settled pairs when it was started")
    state: str = Field(description="of its job")
    model: str | None = Field(description="its candidate")
    better: bool | None = Field(description="whether the candidate is shown to be better; null: there is none")


class TrainingPolicyOut(BaseModel):
    """When a deployment is trained again without being asked. The version is the ETag."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    collection: str
    task: str
    version: int = Field(description="0: nobody has set a policy")
    trigger: Trigger
    hours: float
    at: str | None
    labels: int
    max_trainings: int | None
    max_seconds: float | None
    publish: Publication
    training: dict[str, Any] | None = Field(
        description="how to train; null if it names collections or models that the key may not see"
    )
    state: State = Field(description="due, or what keeps a training from starting")
    detail: str = Field(description="the same, for people")
    next_at: float | None = Field(description="when the next training is due, if time alone decides")
    last: LastTrainingOut | None
