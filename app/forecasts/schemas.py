"""Bodies and answers of the routes for forecasts."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples

SHARE: dict[str, Any] = {"value": 0.031, "low": 0.017, "high": 0.056}
FOUND: dict[str, Any] = {"value": 0.86, "low": 0.82, "high": 0.89}
POINT: dict[str, Any] = {
    "factor": 10.0,
    "faces": 24120,
    "people": 8030,
    "is_measured": False,
    "strangers_named": SHARE,
    "distractors_named": None,
    "people_found": FOUND,
    "kept_distance": 0.27,
    "found_at_kept": {"value": 0.82, "low": 0.77, "high": 0.86},
}
COMPARISON: dict[str, Any] = {
    "predicted": {"value": 0.012, "low": 0.005, "high": 0.028},
    "measured": {"value": 0.0121, "low": 0.0062, "high": 0.0211},
    "is_inside": True,
}
CHECK: dict[str, Any] = {
    "faces": 241,
    "people": 80,
    "strangers_named": COMPARISON,
    "distractors_named": None,
    "people_found": None,
}
REPORT: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "model": examples.BUILT_IN_MODEL,
    "faces": 2412,
    "people": 803,
    "distractors": 0,
    "fpir": 0.01,
    "distance": 0.31,
    "enough": True,
    "trained_here": False,
    "unmeasured_reason": None,
    "points": [POINT],
    "check": CHECK,
    "finished_at": examples.MOMENT,
}


class ForecastIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"fpir": 0.01}]})
    fpir: float | None = Field(
        None,
        gt=0,
        le=0.5,
        strict=True,
        description="the share of strangers named today whose threshold is kept; default: that of the collection",
    )


class Share(BaseModel):
    """A share of searches with its 95 % interval, 0 to 1."""

    model_config = ConfigDict(json_schema_extra={"examples": [SHARE]})
    value: float
    low: float
    high: float


class GrowthPointOut(BaseModel):
    """The rates in a gallery of one size."""

    model_config = ConfigDict(json_schema_extra={"examples": [POINT]})
    factor: float = Field(description="its size over that of the collection, with the same share of distractors")
    faces: int
    people: int = Field(description="people with a name")
    is_measured: bool = Field(description="true: measured, as the mean over random parts; false: predicted")
    strangers_named: Share | None = Field(
        description="strangers' searches that name somebody, by enrolled people without their own faces; null if the "
        "model was trained on them"
    )
    distractors_named: Share | None = Field(description="searches by enrolled distractors that name somebody")
    people_found: Share | None = Field(
        description="searches by people with two faces or more that name them, each without the face that searches"
    )
    kept_distance: float | None = Field(
        description="the threshold that names a share `fpir` of strangers at this size, by these searches; null "
        "for smaller sizes, and without enough searches"
    )
    found_at_kept: Share | None = Field(description="people found with that threshold")


class ForecastComparison(BaseModel):
    """What was predicted, and what was measured."""

    model_config = ConfigDict(json_schema_extra={"examples": [COMPARISON]})
    predicted: Share
    measured: Share
    is_inside: bool = Field(description="whether what was measured lies inside the interval of the prediction")


class ForecastCheckOut(BaseModel):
    """What a random tenth of the collection alone predicts for the whole, beside what was measured there."""

    model_config = ConfigDict(json_schema_extra={"examples": [CHECK]})
    faces: int
    people: int
    strangers_named: ForecastComparison | None
    distractors_named: ForecastComparison | None
    people_found: ForecastComparison | None


class ForecastOut(BaseModel):
    """How many strangers a collection names, and how many people it finds, as it grows, at today's threshold."""

    model_config = ConfigDict(json_schema_extra={"examples": [REPORT]})
    collection: str
    model: str
    faces: int
    people: int
    distractors: int
    fpir: float
    distance: float | None = Field(description="today's threshold of the person distance; null if nothing was measured")
    enough: bool = Field(description="whether that threshold was measured by searches; otherwise pairs give it")
    trained_here: bool = Field(
        description="whether the model was trained on these people; more of them are then found than of new people"
    )
    unmeasured_reason: str | None = Field(description="why there are no points")
    points: list[GrowthPointOut] = Field(description="by rising size")
    check: ForecastCheckOut | None = Field(description="null if a tenth of the collection has fewer than 100 people")
    finished_at: float
