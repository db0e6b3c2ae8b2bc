"""Bodies and answers of the routes for deployments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from app.db import examples
from app.db.field_types import LabelPolicy, LabelWeights, ModelName, Note
from app.db.tables import Deployment
from ml.calibration import Calibration

HIDDEN_MEASUREMENTS = {"calibration", "open_set"}
"""Measurements that are shown as `thresholds` and `decisions` alone."""
REPORTED_FMRS = (0.1, 0.01, 0.001, 0.0001)
THRESHOLD: dict[str, Any] = {
    "requested_fmr": 0.001, "distance": 0.7, "fmr": 0.00097, "low": 0.00064, "high": 0.0014, "enough": True,
}  # fmt: skip
PERSON_THRESHOLD: dict[str, Any] = {
    "fpir": 0.01, "distance": 0.31, "possible_distance": 0.42, "low": 0.0055, "high": 0.0163, "enough": True,
    "named_rightly": 0.88,
}  # fmt: skip
POINT = {"m": 8, "recall": 0.992, "fraction": 0.07, "ms": 0.4}
REFERENCE: dict[str, Any] = {
    "source": None, "faces": 2150, "compensated": False, "reason": "reference", "degradation": None, "recognised": None,
    "shift": None, "people": 0, "gain": None, "low": None, "high": None,
}  # fmt: skip
SOURCE: dict[str, Any] = {
    "source": "gate-2", "faces": 250, "compensated": True, "reason": "helps", "degradation": "15 pixels",
    "recognised": 0.97, "shift": 0.21, "people": 60, "gain": 0.07, "low": 0.05, "high": 0.09,
}  # fmt: skip
DAMAGED: dict[str, Any] = {
    "model": examples.FIRST_MODEL, "pointers": ["previous"], "reason": "the model lbp-l2 was altered: embedder.json",
}  # fmt: skip
MOVE: dict[str, Any] = {
    "at": examples.MOMENT, "pointer": "champion", "model": examples.MODEL, "by": "release desk", "reason": "",
    "overridden": False, "verdict": {"passed": True, "reasons": []}, "change": 1042, "version": 3, "job": examples.JOB,
}  # fmt: skip
OUT: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "task": "identity",
    "champion": examples.MODEL,
    "challenger": None,
    "previous": examples.FIRST_MODEL,
    "version": 3,
    "default_fpir": 0.01,
    "label_policy": "list",
    "label_weights": "equal",
    "label_quorum": 1,
    "shadow_share": 0.0,
    "decisions": [PERSON_THRESHOLD],
    "thresholds": [THRESHOLD],
    "cells": 128,
    "curve": [POINT],
    "index": "ivf",
    "candidates": None,
    "candidate_curve": [],
    "sources": [REFERENCE, SOURCE],
    "damaged": [],
    "measurements": {examples.MODEL: {"default_fmr": 0.001, "cells": 128, "faces": 2400}},
    "history": [MOVE],
    "updated_at": examples.MOMENT,
}
PUBLISHED: list[JsonValue] = [
    {"model": examples.MODEL},
    {"model": examples.MODEL, "override": True, "reason": "the held-out people were mislabelled"},
]
COMPARED: list[JsonValue] = [{"models": ["champion", examples.MODEL]}]
CHALLENGERS: list[JsonValue] = [{"model": examples.MODEL}, {"model": None}]


class ThresholdOut(BaseModel):
    """The distance up to which two faces match, at a false-match rate that was measured on this gallery's impostors."""

    model_config = ConfigDict(json_schema_extra={"examples": [THRESHOLD]})
    requested_fmr: float = Field(description="the false-match rate that the distance is meant to have")
    distance: float
    fmr: float = Field(description="the false-match rate at this distance, as measured")
    low: float = Field(description="low end of its 95 % interval over people; 0 to 1 if an older version measured it")
    high: float
    enough: bool = Field(description="whether there is enough evidence: high is at most three times low")


class PersonThresholdOut(BaseModel):
    """The person distance up to which a search names somebody, at a rate of strangers named."""

    model_config = ConfigDict(json_schema_extra={"examples": [PERSON_THRESHOLD]})
    fpir: float = Field(description="the share of strangers' searches that may name somebody")
    distance: float = Field(description="the person distance up to which the decision is `match`")
    possible_distance: float = Field(description="the person distance up to which the decision is `possible`")
    low: float | None = Field(description="low end of the 95 % interval of the true rate; null: measured by pairs only")
    high: float | None
    enough: bool = Field(description="whether enough searches were measured; if not, pairs give a cautious threshold")
    named_rightly: float | None = Field(
        description="the share of enrolled people's searches that name the right person, each without the face that "
        "searches; null if the model was trained on these people"
    )


class SourceOut(BaseModel):
    """A source of faces, and whether searches compensate for it."""

    model_config = ConfigDict(json_schema_extra={"examples": [SOURCE]})
    source: str | None = Field(description="null: the faces without a source")
    faces: int = Field(description="the number of its faces now")
    compensated: bool = Field(description="whether its embeddings are moved to where those of the reference lie")
    reason: Literal[
        "reference",
        "helps",
        "does not help",
        "simulated",
        "large shift",
        "small shift",
        "too few faces",
        "too many sources",
        "not measured yet",
    ] = Field(
        description="reference: the largest source, to which the others are moved; helps, does not help: measured on "
        "people who are named in this source and in others; simulated, large shift, small shift: too few such people, "
        "so that it counts whether a degradation explains the source, and else its shift; too many sources: only the "
        "largest ones are measured"
    )
    degradation: str | None = Field(
        description="the degradation of faces of the reference that simulates the source in its correction; null: the "
        "correction is learned from the faces of the source alone"
    )
    recognised: float | None = Field(
        None,
        description="the share of its faces that `source=guess` takes to be of it; null: it is not guessed",
    )
    shift: float | None = Field(
        description="squared distance of its mean from that of the reference, over the spread of the reference; 0.1 or "
        "more is large"
    )
    people: int = Field(description="the number of people that it was judged on; 0: not judged")
    gain: float | None = Field(description="mean average precision of their searches across sources, with less without")
    low: float | None = Field(description="low end of the 95 % interval of the gain")
    high: float | None = Field(description="high end of this interval")

    @classmethod
    def of(cls, source: str, faces: int, decision: Mapping[str, Any] | None) -> Self:
        """Describe a source by what was measured of it; None: nothing yet."""
        decision = decision or {}
        comparison = decision.get("comparison") or {}
        gain = comparison.get("difference", {})
        return cls(
            source=source or None,
            faces=faces,
            compensated=decision.get("is_on", False),
            reason=decision.get("reason", "not measured yet"),
            degradation=decision.get("degradation"),
            recognised=decision.get("recognised"),
            shift=decision.get("shift"),
            people=comparison.get("groups", 0),
            gain=gain.get("value"),
            low=gain.get("low"),
            high=gain.get("high"),
        )


class DamagedModelOut(BaseModel):
    """A model of a deployment whose stored files are damaged."""

    model_config = ConfigDict(json_schema_extra={"examples": [DAMAGED]})
    model: str
    pointers: list[str] = Field(description="which of champion, challenger and previous name it")
    reason: str


class DeploymentOut(BaseModel):
    """The models that serve a task in a collection. The version is the ETag."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    collection: str
    task: str
    champion: str = Field(description="the model that serves")
    challenger: str | None = Field(description="a model that can be searched by name, beside the champion")
    previous: str | None = Field(description="the model that a roll back restores")
    version: int
    default_fpir: float = Field(
        description="the rate of strangers named, unless a search states another; without effect "
        "for tasks other than identity"
    )
    label_policy: str = Field(description="list or refuse: what happens to a model that breaks labels")
    label_weights: str = Field(description="equal or agreement: how much the votes of labellers weigh")
    label_quorum: int = Field(description="how many labellers a majority needs")
    shadow_share: float = Field(description="the share of searches that the challenger answers too, for comparison")
    decisions: list[PersonThresholdOut] = Field(description="of the champion, for the gallery's size when measured")
    thresholds: list[ThresholdOut] = Field(description="of the champion, if pairs of this gallery were measured")
    cells: int | None = Field(description="p, the number of cells of the champion's index")
    curve: list[dict[str, float]] = Field(description="of the champion: recall, fraction and milliseconds over m")
    index: str | None = Field(description="the champion's index: flat, ivf, reranked or two_stage")
    candidates: int | None = Field(
        description="of an index with two stages: how many faces the second stage ranks, chosen from `candidate_curve`"
    )
    candidate_curve: list[dict[str, float]] = Field(
        description="of an index with two stages: share of the nearest and of the ten nearest that the first stage "
        "keeps, and milliseconds, over the number of candidates"
    )
    sources: list[SourceOut] = Field(
        description="where the faces come from, if any was enrolled with a source, and whether the champion's searches "
        "compensate for it"
    )
    damaged: list[DamagedModelOut] = Field(
        description="models that cannot be loaded, because their stored files are damaged; new faces are not embedded "
        "for them, and pointers cannot be moved to them"
    )
    measurements: dict[str, dict[str, Any]] = Field(description="model id -> what was measured of the model here")
    history: list[dict[str, Any]] = Field(description="every move of a pointer: who, when, why, against which reasons")
    updated_at: float

    @classmethod
    def of(cls, row: Deployment, sources: list[SourceOut], damaged: Sequence[DamagedModelOut] = ()) -> Self:
        measured = row.measurements.get(row.champion, {})
        return cls(
            collection=row.collection_id,
            task=row.task,
            champion=row.champion,
            challenger=row.challenger,
            previous=row.previous,
            version=row.version,
            default_fpir=row.default_fpir,
            label_policy=row.label_policy,
            label_weights=row.label_weights,
            label_quorum=row.label_quorum,
            shadow_share=row.shadow_share,
            decisions=[PersonThresholdOut(**rate) for rate in (measured.get("open_set") or {}).get("rates", ())],
            thresholds=list(_iterate_thresholds(measured)),
            cells=measured.get("cells"),
            curve=measured.get("curve", []),
            index=measured.get("index"),
            candidates=measured.get("candidates"),
            candidate_curve=measured.get("candidate_curve", []),
            sources=sources,
            damaged=list(damaged),
            measurements={model: _describe_measurements(entry) for model, entry in row.measurements.items()},
            history=row.history,
            updated_at=row.updated_at,
        )


def _describe_measurements(measured: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in measured.items() if name not in HIDDEN_MEASUREMENTS}
    return shown | {"thresholds": [threshold.model_dump() for threshold in _iterate_thresholds(measured)]}


def _iterate_thresholds(measured: Mapping[str, Any]) -> Iterator[ThresholdOut]:
    own = measured.get("calibration")
    if not own:
        return
    calibration = Calibration.from_dict(own)
    for rate in REPORTED_FMRS:
        yield ThresholdOut(requested_fmr=rate, **asdict(calibration.threshold(rate)))


class DeploymentsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"deployments": [OUT]}]})
    deployments: list[DeploymentOut]


class PublishIn(BaseModel):
    """The model to publish."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": PUBLISHED})
    model: ModelName
    override: bool = Field(
        False, strict=True, description="publish against the gate; needs a reason, which is recorded"
    )
    reason: Note = ""


class RollbackIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason": "complaints at the door"}]})
    reason: Note = ""


class DeploymentIn(BaseModel):
    """The fields of a deployment that can be changed."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"default_fpir": 0.001},
                {"label_policy": "refuse"},
                {"label_weights": "agreement", "label_quorum": 2},
                {"shadow_share": 0.1},
            ]
        },
    )
    default_fpir: float = Field(
        0.01,
        ge=1e-6,
        le=0.5,
        strict=True,
        description="the share of strangers' searches that may name somebody, 0.000001 to 0.5; without effect "
        "for tasks other than identity",
    )
    label_policy: LabelPolicy = Field(
        "list",
        description="what happens to a model that breaks labels: they are listed in the verdict, or it is refused",
    )

    label_weights: LabelWeights = Field(
        "equal",
        description="whether the votes of all labellers weigh 1, or by how well each labeller agrees with the others",
    )
    label_quorum: int = Field(
        1, ge=1, le=100, strict=True, description="how many labellers a majority needs to settle a pair"
    )
    shadow_share: float = Field(
        0.0,
        ge=0,
        le=1,
        strict=True,
        description="the share of searches that the challenger answers too, for comparison, 0 to 1",
    )

    @model_validator(mode="after")
    def _check_stated(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"state at least one of: {', '.join(type(self).model_fields)}")
        return self


class CompareIn(BaseModel):
    """Two models to measure side by side. Differences are those of the second minus the first."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": COMPARED})
    models: Annotated[list[ModelName], Field(min_length=2, max_length=2)] = Field(
        description="two model ids, or `champion`, `challenger`, `previous`"
    )


class ChallengerIn(BaseModel):
    """The model that is to be the challenger; null: none."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": CHALLENGERS})
    model: ModelName | None
