"""Bodies and answers of the routes for recognisers."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import Note, Word
from app.storage.recognisers.catalogue import Recogniser

ACCURACY: dict[str, Any] = {
    "data": "LFW view 2, 6,000 pairs", "by": "us", "verification": 0.9863, "right_first": 0.969, "auc": None,
}  # fmt: skip
OUT: dict[str, Any] = {
    "name": "dlib_resnet",
    "licence": "CC0-1.0",
    "bytes": 22466066,
    "source": "http://dlib.net, by the PyPI package face_recognition_models 0.3.0",
    "dim": 128,
    "accuracy": ACCURACY,
    "installed": True,
    "install": "",
    "serves": [examples.COLLECTION],
}
USED: dict[str, Any] = {
    "collection": examples.COLLECTION, "recogniser": "dlib_resnet", "model": "dlibresnet-cosine-5b1c6c1d2e3f7f9c",
}  # fmt: skip


class AccuracyOut(BaseModel):
    """How well a recogniser tells people apart. Shares are from 0 to 1; null: not measured."""

    model_config = ConfigDict(json_schema_extra={"examples": [ACCURACY]})
    data: str = Field(description="what it was measured on")
    by: Literal["us", "publisher"] = Field(description="who measured it: Likeness, or the publisher of the file")
    verification: float | None = Field(description="share of pairs of photos that are judged correctly")
    right_first: float | None = Field(description="share of searches in which the right person came first")
    auc: float | None = Field(
        description="probability that a pair of one person is more alike than a pair of two people"
    )


class RecogniserOut(BaseModel):
    """A way to describe faces that works without any training."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    name: str = Field(description="the name that `:use-recogniser` accepts")
    licence: str = Field(description="the licence as its publisher states it, for information only")
    bytes: int | None = Field(description="size of its file; 0: it needs none; null: unknown")
    source: str = Field(description="where its file comes from")
    dim: int | None = Field(description="size of its vectors; null: unknown")
    accuracy: AccuracyOut | None = Field(description="null: not measured")
    installed: bool = Field(description="whether it can be used now")
    install: str = Field(description="the command that installs it, or why it cannot be used; empty if installed")
    serves: list[str] = Field(
        description="the collections, of those that the key may see, whose faces it describes, with or without a "
        "learned metric on top"
    )

    @classmethod
    def of(cls, entry: Recogniser, serves: list[str]) -> Self:
        return cls(
            name=entry.name,
            licence=entry.licence,
            bytes=entry.size,
            source=entry.source,
            dim=entry.dim,
            accuracy=AccuracyOut(**vars(entry.accuracy)) if entry.accuracy else None,
            installed=entry.spec is not None,
            install=entry.install,
            serves=serves,
        )


class RecognisersOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"recognisers": [OUT]}]})
    recognisers: list[RecogniserOut]


class UseRecogniserIn(BaseModel):
    """The recogniser that is to describe a collection's faces."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"recogniser": "dlib_resnet"},
                {"recogniser": "lbp", "override": True, "reason": "to compare with how it was"},
            ]
        },
    )
    recogniser: Word = Field(description="a name that `GET /v1/recognisers` lists as installed")
    override: bool = Field(
        False, strict=True, description="publish against the gate; needs a reason, which is recorded"
    )
    reason: Note = ""


class UsedRecogniserOut(BaseModel):
    """The recogniser serves, since nothing was left to compute."""

    model_config = ConfigDict(json_schema_extra={"examples": [USED]})
    collection: str
    recogniser: str
    model: str = Field(description="the id of the model that serves now")
