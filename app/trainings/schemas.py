"""Bodies and answers of the routes for trainings."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.db import examples
from app.db.tables import Training
from app.deps.job_response import QUEUED, JobOut, State
from app.learning.training_request import TrainingRequest

EXAMPLES: list[JsonValue] = [
    {"collection": examples.COLLECTION},
    {"collection": examples.COLLECTION, "method": "ldml", "descriptor": "lbp", "dim": 32},
    {
        "collection": examples.COLLECTION, "method": "cosim_average",
        "descriptors": [{"name": "lbp", "options": {"margin": 2}}, "sift"],
    },
    {
        "collection": examples.COLLECTION, "method": "cpmtml", "descriptor": "lbp", "dim": 64,
        "sources": [
            {"task": "identity", "from": "subjects"},
            {"task": "identity", "from": "labels"},
            {"task": "age", "collection": "ages", "from": "metadata.age", "tolerance": 5, "max_pairs": 40000},
        ],
    },
]  # fmt: skip


STARTED: dict[str, JsonValue] = QUEUED | {"kind": "train", "training": examples.TRAINING}
OUT: dict[str, Any] = {
    "id": examples.TRAINING,
    "collection": examples.COLLECTION,
    "request": {
        "collection": examples.COLLECTION,
        "method": "ldml",
        "descriptors": [{"name": "lbp", "options": {}}],
        "options": {"dim": 32, "seed": 0},
        "sources": [{"task": "identity", "from": "subjects"}, {"task": "identity", "from": "labels"}],
        "holdout": 0.2,
        "start_from": None,
    },
    "state": "succeeded",
    "job": examples.JOB,
    "model": examples.MODEL,
    "problem": None,
    "created_at": examples.MOMENT,
}
WHOLE: dict[str, Any] = OUT | {
    "curve": [{"phase": "fit", "step": 100, "steps": 400, "loss": 0.31}],
    "report": {
        "tasks": {"identity": {"candidate": {"map": 0.71}, "current": {"map": 0.58}}},
        "refit": True,
        "choice": None,
    },
}


class TrainingIn(TrainingRequest):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": EXAMPLES})


class TrainingStarted(JobOut):
    """The job, and the training that it runs."""

    model_config = ConfigDict(json_schema_extra={"examples": [STARTED]})
    training: str


class TrainingOut(BaseModel):
    """A training: its request, its state and its candidate."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    collection: str
    request: dict[str, Any] = Field(description="the request, with every option filled in")
    state: State
    job: str | None
    model: str | None = Field(description="the candidate's id, once there is one")
    problem: dict[str, Any] | None
    created_at: float

    @classmethod
    def of(cls, training: Training, job: JobOut | None) -> "TrainingOut":
        return cls(**_common_fields(training, job))


class WholeTrainingOut(TrainingOut):
    """A training with its learning curve and its report."""

    model_config = ConfigDict(json_schema_extra={"examples": [WHOLE]})
    curve: list[dict[str, Any]] = Field(description="points with phase, step, steps and measured values")
    report: dict[str, Any] = Field(
        description="`choice`: what the method auto chose, why, and what it tried; `tasks.*.projections`: of methods "
        "that learn several tasks, what the common and the own projection of a task do"
    )

    @classmethod
    def of(cls, training: Training, job: JobOut | None) -> "WholeTrainingOut":
        return cls(**_common_fields(training, job), curve=training.curve, report=training.report)


class TrainingsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"trainings": [OUT], "next_token": None}]})
    trainings: list[TrainingOut]
    next_token: str | None = None


def _common_fields(training: Training, job: JobOut | None) -> dict[str, Any]:
    return {
        "id": training.id,
        "collection": training.request["collection"],
        "request": training.request,
        "state": job.state if job else "succeeded" if training.model else "cancelled",
        "job": training.job_id,
        "model": training.model,
        "problem": job.problem if job else None,
        "created_at": training.created_at,
    }
