"""The request for an evaluation."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from app.db.field_types import NO_NUL, CollectionName, Metadata, Note, TaskName
from app.learning.plan import DescriptorChoice, Source
from app.learning.training_request import TrainingRequest

By = Annotated[str, StringConstraints(pattern=r"^(subjects|metadata\.[^\x00]{1,255})$")]


class ProtocolFile(BaseModel):
    """A protocol file. retrieval: the photo of one query per line. disjoint: `train NAME` and `query PHOTO` lines.

    verification: the format of LFW's `pairs.txt`: `FOLDS<tab>N`, then for each fold N lines `NAME<tab>A<tab>B` and N
    lines `NAME<tab>A<tab>NAME<tab>B`.

    A photo is named by the last two parts of its external_image_id, `Name/Name_0001.jpg`.
    """

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=255, pattern=r"^[A-Za-z0-9_.-]+$")
    text: str = Field(max_length=16_000_000, pattern=NO_NUL)


class TrainingSpec(BaseModel):
    """How to fit the model of each draw, on the training side of its protocol only; see `POST /v1/trainings`."""

    model_config = ConfigDict(extra="forbid")
    method: str = Field(max_length=64, pattern=NO_NUL)
    descriptor: DescriptorChoice | None = Field(None, description="a name, or a name with options, as for a training")
    descriptors: list[DescriptorChoice] = Field([], max_length=8)
    dim: int | None = Field(None, ge=1, le=4096, strict=True)
    options: Metadata = {}
    seed: int = Field(0, ge=0, lt=2**31, strict=True)
    sources: list[Source] = Field([], max_length=64, description="empty: subjects and labels")


class EvaluationRequest(BaseModel):
    """What to measure: an existing model, or the models of a training; on protocol files, random draws, or labels."""

    model_config = ConfigDict(extra="forbid")
    collection: CollectionName
    task: TaskName = "identity"
    protocol: Literal["retrieval", "disjoint", "holdout", "openset", "verification", "labels"] = "retrieval"
    files: list[ProtocolFile] = Field([], max_length=20)
    draws: int = Field(1, ge=1, le=100, strict=True, description="without files: the number of random draws")
    seed: int = Field(0, ge=0, lt=2**31, strict=True, description="the seed of the first draw; each next draw adds 1")
    model: Note | None = Field(
        None, max_length=64, description="the id of a model, or champion (the default), challenger, previous"
    )
    training: TrainingSpec | None = None
    setting: Literal["unrestricted", "restricted"] = Field(
        "unrestricted",
        description="verification with a training: learn from who is on the photos, or only from the folds' pairs",
    )
    against: Note | None = Field(
        None, max_length=64, description="an earlier evaluation to compare with, whose report then has `against`"
    )
    by: By = Field("subjects", description="faces are the same by subjects, or by metadata.<key>")
    tolerance: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        strict=True,
        description="metadata values that differ by at most this count as the same",
    )

    def training_request(self) -> TrainingRequest:
        """Return the training of each draw. Raises ValueError if an existing model is measured."""
        if self.training is None:
            raise ValueError("this evaluation measures an existing model and trains none")
        spec = self.training.model_dump(by_alias=True, exclude_unset=True)
        return TrainingRequest(collection=self.collection, holdout=0.0, **spec)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.model and self.training:
            raise ValueError("send model or training, not both")
        if self.protocol == "labels" and (self.training or self.files):
            raise ValueError("the protocol labels needs an existing model and no files")
        if self.protocol in ("holdout", "openset") and self.files:
            raise ValueError(f"the protocol {self.protocol} uses random draws: send draws, not files")
        if self.protocol == "verification" and (len(self.files) != 1 or self.by != "subjects"):
            raise ValueError("verification needs exactly one file, a list of pairs of people")
        if self.protocol == "labels" and self.against:
            raise ValueError("labels cannot be compared with an earlier evaluation: they may have changed")
        if self.setting == "restricted" and (self.protocol != "verification" or not self.training):
            raise ValueError("the setting restricted needs the protocol verification and a training")
        return self


def make_public_report(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the outcome of each query, which is kept only to compare evaluations."""
    return {name: part for name, part in report.items() if name != "outcomes"}
