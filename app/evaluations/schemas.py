from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from app.db.tables import Evaluation
from app.deps import examples
from app.deps.accepted import QUEUED, JobOut, State
from app.deps.words import NO_NUL, CollectionName, Note, TaskName
from app.engine.names import Metadata

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
By = Annotated[str, StringConstraints(pattern=r"^(subjects|metadata\.[^\x00]{1,255})$")]


class ProtocolFile(BaseModel):
    """retrieval: a query's photo a line. disjoint: `train NAME` and `query PHOTO` lines.

    verification: as LFW's `pairs.txt`, `FOLDS<tab>N`, then for each fold N lines `NAME<tab>A<tab>B` and N lines
    `NAME<tab>A<tab>NAME<tab>B`.

    A photo is named by the last two parts of its external_image_id, `Name/Name_0001.jpg`.
    """

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=255, pattern=r"^[A-Za-z0-9_.-]+$")
    text: str = Field(max_length=16_000_000, pattern=NO_NUL)


class TrainingSpec(BaseModel):
    """How each draw's model is made, from the training side of its protocol alone; see `POST /v1/trainings`."""

    model_config = ConfigDict(extra="forbid")
    method: str = Field(max_length=64)
    descriptor: str | Metadata | None = Field(None, description="by name, or name and options, as for a training")
    descriptors: list[str | Metadata] = Field([], max_length=8)
    dim: int | None = Field(None, ge=1, le=4096)
    options: Metadata = {}
    seed: int = Field(0, ge=0, lt=2**31)
    sources: list[Metadata] = Field([], max_length=64, description="without any: subjects and labels")


class EvaluationIn(BaseModel):
    """What is measured: a model that there is, or what a training makes; on protocol files, draws, or labels."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": EXAMPLES})
    collection: CollectionName
    task: TaskName = "identity"
    protocol: Literal["retrieval", "disjoint", "holdout", "openset", "verification", "labels"] = "retrieval"
    files: list[ProtocolFile] = Field([], max_length=20)
    draws: int = Field(1, ge=1, le=100, description="without files: how many are drawn by the server")
    seed: int = Field(0, ge=0, lt=2**31, description="of the first draw; the next ones count on")
    model: Note | None = Field(
        None, max_length=64, description="an id, or champion (the default), challenger, previous"
    )
    training: TrainingSpec | None = None
    setting: Literal["unrestricted", "restricted"] = Field(
        "unrestricted",
        description="verification by a training: from who is on the photos, or from the folds' pairs alone",
    )
    against: Note | None = Field(
        None, max_length=64, description="an evaluation of the same to compare with: the report gains `against`"
    )
    by: By = Field("subjects", description="what counts as the same: subjects, or metadata.<key>")
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False, description="metadata that differ by so much are the same")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.model and self.training:
            raise ValueError("send model or training, not both")
        if self.protocol == "labels" and (self.training or self.files):
            raise ValueError("labels are judged by a model that there is, and need no files")
        if self.protocol in ("holdout", "openset") and self.files:
            raise ValueError(f"{self.protocol} is drawn by the server: send draws, not files")
        if self.protocol == "verification" and (len(self.files) != 1 or self.by != "subjects"):
            raise ValueError("verification takes one file, a list of pairs of people")
        if self.protocol == "labels" and self.against:
            raise ValueError("labels cannot be compared with an earlier evaluation: they may have changed")
        if self.setting == "restricted" and (self.protocol != "verification" or not self.training):
            raise ValueError("restricted is a way to train for verification")
        return self


class EvaluationOut(BaseModel):
    """A measurement: what was asked, and what came of it."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    collection: str
    state: State
    job: str | None
    request: dict[str, Any] = Field(description="files by their names alone")
    problem: dict[str, Any] | None
    created_at: float

    @classmethod
    def of(cls, row: Evaluation, job: JobOut | None) -> "EvaluationOut":
        return cls(**_common(row, job))


class WholeEvaluationOut(EvaluationOut):
    """With its report: `mean` and `sd` over the draws, each draw, all draws pooled with intervals, and the curves.

    Intervals hold 95 % and resample people. `pooled`: mAP, n-call@K, CMC, FNIR at FPIR, 1-NN error, and under
    `separation` EER, AUC, FNMR at FMR and how far friends and foes lie apart; for verification these stand at the top,
    beside `accuracy`. `against`: this less the earlier evaluation, query by query, with the p of a permutation test.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [WHOLE]})
    report: dict[str, Any]

    @classmethod
    def of(cls, row: Evaluation, job: JobOut | None) -> "WholeEvaluationOut":
        return cls(**_common(row, job), report=told_of(row.report))


class EvaluationsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"evaluations": [OUT], "next_token": None}]})
    evaluations: list[EvaluationOut]
    next_token: str | None = None


class EvaluationStarted(JobOut):
    """The job, and the evaluation that it makes."""

    model_config = ConfigDict(json_schema_extra={"examples": [STARTED]})
    evaluation: str


def told_of(report: dict[str, Any]) -> dict[str, Any]:
    """A report as it is told: without what came of each query, which is kept to compare with."""
    return {name: part for name, part in report.items() if name != "outcomes"}


def _common(row: Evaluation, job: JobOut | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "collection": row.request["collection"],
        "state": job.state if job else "succeeded" if row.report else "cancelled",
        "job": row.job_id,
        "request": row.request | {"files": [f["name"] for f in row.request["files"]]},
        "problem": job.problem if job else None,
        "created_at": row.created_at,
    }
