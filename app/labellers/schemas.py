"""Answers of the route for labellers."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples

SHARE: dict[str, Any] = {"value": 0.51, "low": 0.47, "high": 0.55}
LABELLER: dict[str, Any] = {
    "labeller": examples.LABELLER, "labels": 1000, "judged_by_others": 640, "compared": 590, "agreement": SHARE,
    "same_rate": 0.52, "different_rate": 0.5, "weight": 0.0, "last_label_at": examples.MOMENT,
}  # fmt: skip


class AgreementOut(BaseModel):
    """A share with its 95 % interval."""

    model_config = ConfigDict(json_schema_extra={"examples": [SHARE]})
    value: float
    low: float
    high: float


class LabellerOut(BaseModel):
    """A labeller, by the labels that count now."""

    model_config = ConfigDict(json_schema_extra={"examples": [LABELLER]})
    labeller: str
    labels: int = Field(description="pairs that this person judged")
    judged_by_others: int = Field(description="those that somebody else judged too")
    compared: int = Field(description="those on which a majority of the others agrees")
    agreement: AgreementOut | None = Field(description="share of those on which this person agrees with it; null: none")
    same_rate: float = Field(description="estimate: how often faces that are the same are answered so, 0 to 1")
    different_rate: float = Field(description="estimate: how often faces that are not the same are answered so, 0 to 1")
    weight: float = Field(
        description="of the votes by agreement: 1 for a newcomer, 0 where chance explains the answers"
    )
    last_label_at: float


class LabellersOut(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"weights": "agreement", "quorum": 1, "labellers": [LABELLER], "next_token": None}]
        }
    )
    weights: str = Field(description="equal or agreement: what the deployment uses")
    quorum: int = Field(description="how many labellers a majority needs")
    labellers: list[LabellerOut]
    next_token: str | None = None
