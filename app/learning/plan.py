"""What a training was asked to do, checked: stored with its row, and read again by the worker."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.db.field_types import CollectionName, Metadata, TaskName, Word
from app.learning.label_consensus import Rule
from ml import registry
from ml.model import Recipe
from ml.types import Spec

FROM = r"^(labels|subjects|metadata\.[^\x00]{1,255})$"


class Source(BaseModel):
    """Where a task's "same" and "not the same" come from."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    task: TaskName = "identity"
    collection: CollectionName | None = Field(None, description="without it, the training's own")
    origin: str = Field(alias="from", pattern=FROM, description="labels, subjects, or metadata.<key>")
    tolerance: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="numbers that differ by at most this are the same"
    )
    max_pairs: int | None = Field(None, ge=2, le=1_000_000, description="pairs drawn from it, half of them the same")
    labellers: dict[Word, float] = Field({}, description="labels: weight of a labeller's word, 1 where not named")
    quorum: int = Field(1, ge=1, description="labels: how many labellers a majority needs")

    @property
    def metadata(self) -> str | None:
        return self.origin.removeprefix("metadata.") if self.origin.startswith("metadata.") else None

    @property
    def rule(self) -> Rule:
        return Rule(self.labellers, self.quorum)


class Named(BaseModel):
    """A component with its options."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=255)
    options: Metadata = {}

    @property
    def unlearned(self) -> bool:
        """A descriptor that must learn from crops first, and is named without what it has learned."""
        return not registry.build("descriptors", self.name, **self.options).is_ready


Described = Annotated[str, Field(min_length=1, max_length=255)] | Named
"""A descriptor by its name alone, or with options."""


class Plan(BaseModel):
    """`options` are complete: every option of the method, with `dim` and `seed` among them where it has them.

    start_from: the model that the fit goes on from
    """

    collection: str
    method: str
    descriptors: tuple[Named, ...]
    options: dict[str, Any]
    sources: tuple[Source, ...]
    holdout: float
    start_from: str | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe(tuple(Spec(d.name, d.options) for d in self.descriptors))

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def collections(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.collection, *(self.of(s) for s in self.sources)]))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The main one first."""
        return tuple(dict.fromkeys(s.task for s in self.sources))

    def of(self, source: Source) -> str:
        return source.collection or self.collection
