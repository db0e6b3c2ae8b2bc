"""The request for a training."""

from pydantic import BaseModel, ConfigDict, Field

from app.db.field_types import NO_NUL, CollectionName, Metadata
from app.learning.plan import ComponentChoice, DescriptorChoice, Source


class TrainingFields(BaseModel):
    """How to train, whatever the collection."""

    model_config = ConfigDict(extra="forbid")
    method: str = Field(
        "auto",
        max_length=64,
        pattern=NO_NUL,
        description="how the metric is learned; auto: chosen by people held out",
    )
    descriptor: DescriptorChoice | None = Field(None, description="without it, that of the serving model")
    descriptors: list[DescriptorChoice] = Field([], max_length=8, description="several descriptors, concatenated")
    dim: int | None = Field(None, ge=1, le=4096, strict=True)
    options: Metadata = Field({}, description="options of the method; the answer to a wrong one lists them")
    seed: int = Field(0, ge=0, lt=2**31, strict=True)
    sources: list[Source] = Field([], max_length=64, description="empty: identity from subjects and labels")
    start_from: str | None = Field(
        None,
        max_length=255,
        pattern=NO_NUL,
        description="continue from a model, by id, or from the `serving` one, with its descriptors and dim",
    )
    index: ComponentChoice | None = Field(
        None,
        description="the index that searches the model's embeddings, such as two_stage; without it, the one that suits "
        "the size of the collection",
        examples=[{"name": "two_stage", "options": {"rows": "file"}}],
    )
    holdout: float = Field(
        0.2,
        ge=0,
        le=0.8,
        strict=True,
        description="share of people held out for the report; of 320 people or more at least 160, so that a threshold "
        "can be measured; 0: no report, and no threshold but one from pairs",
    )


class TrainingRequest(TrainingFields):
    """A training as a client requests it; `plan_resolution.make_plan` resolves it into a plan."""

    collection: CollectionName
