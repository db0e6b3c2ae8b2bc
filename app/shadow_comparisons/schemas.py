"""The answer of the route for shadow comparisons."""

from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from ml.calibration.rate_intervals import clopper_pearson
from ml.evaluation.intervals import student_interval

SHARE: dict[str, Any] = {"count": 930, "of": 1000, "value": 0.93, "low": 0.9124, "high": 0.945}
NO_SHARE: dict[str, Any] = {"count": 0, "of": 0, "value": None, "low": None, "high": None}
MEAN: dict[str, Any] = {"of": 1000, "value": 0.82, "low": 0.805, "high": 0.835}
DIFFERENCE: dict[str, Any] = {"of": 1000, "value": 0.01, "low": -0.01, "high": 0.03}
EXAMPLE: dict[str, Any] = {
    "collection": examples.COLLECTION,
    "task": "identity",
    "status": "running",
    "shadow_share": 0.1,
    "champion": examples.FIRST_MODEL,
    "challenger": examples.MODEL,
    "since": examples.MOMENT,
    "updated_at": examples.MOMENT,
    "compared": 1000,
    "same_first": SHARE,
    "same_decision": SHARE,
    "named_by_both": SHARE,
    "named_differently": {"count": 3, "of": 930, "value": 0.0032, "low": 0.0007, "high": 0.0094},
    "named_by_champion_only": {"count": 5, "of": 1000, "value": 0.005, "low": 0.0016, "high": 0.0116},
    "named_by_challenger_only": {"count": 9, "of": 1000, "value": 0.009, "low": 0.0041, "high": 0.017},
    "overlap": MEAN,
    "probability_difference": DIFFERENCE,
    "broken_labels": NO_SHARE,
    "mended_labels": NO_SHARE,
    "skipped": {"vectors": 12, "not_ready": 3, "failed": 0},
    "dropped": 0,
}


class ComparedShareOut(BaseModel):
    """A share with its exact 95 % interval, which takes the searches as independent; null if nothing was compared."""

    model_config = ConfigDict(json_schema_extra={"examples": [SHARE]})
    count: int
    of: int
    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def from_counts(cls, count: int, of: int) -> Self:
        """Make the share of `count` in `of`."""
        if not of:
            return cls(count=count, of=of, value=None, low=None, high=None)
        low, high = clopper_pearson(count, of)
        return cls(count=count, of=of, value=count / of, low=low, high=high)


class ComparedMeanOut(BaseModel):
    """A mean with Student's 95 % interval, which takes the searches as independent; null if nothing was compared."""

    model_config = ConfigDict(json_schema_extra={"examples": [MEAN]})
    of: int
    value: float | None
    low: float | None = Field(description="low end of the interval; null with fewer than two searches")
    high: float | None

    @classmethod
    def from_sums(cls, of: int, total: float, squares: float) -> Self:
        """Make the mean of `of` values from their sum and the sum of their squares."""
        if not of:
            return cls(of=of, value=None, low=None, high=None)
        mean = total / of
        if of < 2:
            return cls(of=of, value=mean, low=None, high=None)
        variance = max(0.0, squares - of * mean**2) / (of - 1)
        interval = student_interval(mean, float(np.sqrt(variance / of)), of - 1)
        return cls(of=of, value=mean, low=interval.low, high=interval.high)


class SkippedSearchesOut(BaseModel):
    """Query faces of the share that were not compared."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE["skipped"]]})
    vectors: int = Field(description="searches by vector: a vector belongs to the champion's space")
    not_ready: int = Field(
        description="the challenger was not loaded, not calibrated or had no slot, or a face is gone"
    )
    failed: int = Field(description="an unexpected error; the log has it")


class ShadowComparisonOut(BaseModel):
    """How the challenger's answers compare with the champion's. The unit is a query face: a photo may have several."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    collection: str
    task: str
    status: Literal["running", "off", "no challenger"] = Field(
        description="off: `shadow_share` is 0; no challenger: nothing is compared until one is set"
    )
    shadow_share: float = Field(description="the share of the champion's searches that the challenger answers too")
    champion: str
    challenger: str | None
    since: float | None = Field(description="when the first of them was counted; null: none yet")
    updated_at: float | None = Field(description="when totals were last added to; each process adds once a second")
    compared: int = Field(description="query faces that both have answered")
    same_first: ComparedShareOut = Field(description="the first match is the same person")
    same_decision: ComparedShareOut = Field(
        description="the decision is the same, and about the same person; of those with a decision by both"
    )
    named_by_both: ComparedShareOut = Field(description="the decision is `match` by both")
    named_differently: ComparedShareOut = Field(description="those of them that name different people")
    named_by_champion_only: ComparedShareOut
    named_by_challenger_only: ComparedShareOut
    overlap: ComparedMeanOut = Field(
        description="Jaccard index of the people among the first ten matches, or fewer if the search asks for fewer: "
        "those in both lists over those in either, 0 to 1"
    )
    probability_difference: ComparedMeanOut = Field(
        description="calibrated probability of the first match: the challenger's minus the champion's"
    )
    broken_labels: ComparedShareOut = Field(
        description="settled labels of enrolled query faces that only the champion judges right, of those judged by "
        "both: a pair passes if its distance is within the default threshold"
    )
    mended_labels: ComparedShareOut = Field(description="those that only the challenger judges right")
    skipped: SkippedSearchesOut
    dropped: int = Field(description="query faces that were dropped because too many searches were waiting")
