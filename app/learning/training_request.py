"""The request for a training."""

from pydantic import BaseModel, ConfigDict, Field

from app.db.field_types import CollectionName, Metadata
from app.learning.plan import DescriptorChoice, Source


class TrainingRequest(BaseModel):
    """A training as a client requests it; `plan_checks.make_plan` resolves it into a plan."""

    model_config = ConfigDict(extra="forbid")
    collection: CollectionName
    method: str = Field("ldml", max_length=64, description="how the metric is learned")
    descriptor: DescriptorChoice | None = Field(None, description="without it, that of the serving model")
    descriptors: list[DescriptorChoice] = Field([], max_length=8, description="several, one after the other in a row")
    dim: int | None = Field(None, ge=1, le=4096)
    options: Metadata = Field({}, description="of the method; a wrong one is answered with the list of them")
    seed: int = Field(0, ge=0, lt=2**31)
    sources: list[Source] = Field([], max_length=64, description="without any: identity from subjects and labels")
    start_from: str | None = Field(
        None,
        max_length=255,
        description="go on from a model, by id, or from the one that is `serving`; its descriptors and dim are taken",
    )
    holdout: float = Field(0.2, ge=0, le=0.8, description="share of the people whom the report is measured on; 0: none")
