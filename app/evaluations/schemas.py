"""Bodies and answers of the routes for evaluations."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from app.db import examples
from app.db.tables import Evaluation
from app.deps.job_response import QUEUED, JobOut, State
from app.learning.evaluation_request import EvaluationRequest, ProtocolFile, make_public_report

MAX_TEXT_BYTES = 8 * 2**20
"""Of all protocol files of an evaluation, as UTF-8."""
EXAMPLES: list[JsonValue] = [
    {"collection": examples.COLLECTION, "protocol": "retrieval", "draws": 3, "model": "champion"},
    {
        "collection": "lfw", "protocol": "disjoint",
        "files": [{"name": "disjoint-0.txt", "text": "train Ada_Example\nquery Ben_Example/Ben_Example_0017.jpg\n"}],
        "training": {"method": "ldml", "descriptor": "lbp", "dim": 32}, "against": examples.EVALUATION,
    },
    {
        "collection": "lfw", "protocol": "verification", "setting": "restricted",
        "files": [{"name": "pairs.txt", "text": "10\t300\nAda_Example\t1\t4\nBen_Example\t1\tCora_Example\t1\n"}],
        "training": {"method": "ldml", "descriptor": "lbp", "dim": 32},
    },
]  # fmt: skip
STARTED: dict[str, JsonValue] = QUEUED | {"kind": "evaluate", "evaluation": examples.EVALUATION}
OUT: dict[str, Any] = {
    "id": examples.EVALUATION,
    "collection": examples.COLLECTION,
    "state": "succeeded",
    "job": examples.JOB,
    "request": {
        "collection": examples.COLLECTION,
        "task": "identity",
        "protocol": "retrieval",
        "files": [],
        "draws": 3,
        "seed": 0,
        "model": examples.MODEL,
        "against": None,
    },
    "problem": None,
    "created_at": examples.MOMENT,
}
REPORT: dict[str, Any] = {
    "protocol": "retrieval",
    "mean": {"map": 0.71, "1-call@10": 0.9, "eer": 0.05},
    "sd": {"map": 0.01, "1-call@10": 0.01, "eer": 0.004},
    "pooled": {
        "mean_average_precision": {"value": 0.71, "low": 0.68, "high": 0.74},
        "separation": {
            "eer": {"value": 0.05, "low": 0.04, "high": 0.06},
            "auc": {"value": 0.98, "low": 0.97, "high": 0.99},
        },
    },
    "nmi": {"value": 0.93, "low": 0.92, "high": 0.94, "people": 423, "faces": 5985},
    "against": {
        "evaluation": examples.EVALUATION,
        "difference": {"map": {"value": 0.03, "low": 0.01, "high": 0.05, "p": 0.002, "groups": 423}},
    },
}
WHOLE: dict[str, Any] = OUT | {"report": REPORT}


def _check_length(files: list[ProtocolFile]) -> list[ProtocolFile]:
    size = sum(len(file.text.encode()) for file in files)
    if size > MAX_TEXT_BYTES:
        raise ValueError(f"the texts of all files have {size:,} bytes together; {MAX_TEXT_BYTES:,} are allowed")
    return files


class EvaluationIn(EvaluationRequest):
    """What to measure: an existing model, or the models of a training; on protocol files, random draws, or labels."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": EXAMPLES})
    files: Annotated[list[ProtocolFile], AfterValidator(_check_length)] = Field(
        [], max_length=20, description=f"their texts may have {MAX_TEXT_BYTES:,} bytes together, as UTF-8"
    )


class EvaluationOut(BaseModel):
    """An evaluation: its request and its state."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    collection: str
    state: State
    job: str | None
    request: dict[str, Any] = Field(description="the request; files are listed by name")
    problem: dict[str, Any] | None
    created_at: float

    @classmethod
    def of(cls, row: Evaluation, request: dict[str, Any], job: JobOut | None) -> "EvaluationOut":
        """request: that of the row, with the names of its files"""
        return cls(**_common_fields(row, request, job))


class WholeEvaluationOut(EvaluationOut):
    """An evaluation with its report: `mean` and `sd` over the draws, each draw, all draws `pooled`, and the curves.

    Intervals are 95 % and resample people. `pooled` has mAP, n-call@K, CMC, FNIR at FPIR and 1-NN error, and under
    `separation` EER, AUC, FNMR at FMR and the separation of genuine and impostor distances. For verification, the
    latter are at the top, beside `accuracy`. `against` has the differences from the earlier evaluation, paired by
    query, with the p of a permutation test.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [WHOLE]})
    report: dict[str, Any]

    @classmethod
    def of(cls, row: Evaluation, request: dict[str, Any], job: JobOut | None) -> "WholeEvaluationOut":
        return cls(**_common_fields(row, request, job), report=make_public_report(row.report))


class EvaluationsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"evaluations": [OUT], "next_token": None}]})
    evaluations: list[EvaluationOut]
    next_token: str | None = None


class EvaluationStarted(JobOut):
    """The job, and the evaluation that it makes."""

    model_config = ConfigDict(json_schema_extra={"examples": [STARTED]})
    evaluation: str


def _common_fields(row: Evaluation, request: dict[str, Any], job: JobOut | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "collection": request["collection"],
        "state": job.state if job else "succeeded" if row.report else "cancelled",
        "job": row.job_id,
        "request": request,
        "problem": job.problem if job else None,
        "created_at": row.created_at,
    }
