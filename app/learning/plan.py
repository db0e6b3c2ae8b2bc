"""The plan of a training: a request with everything resolved, stored with the training and read by the worker."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.db.field_types import MAX_INTEGER, CollectionName, Metadata, TaskName, Word
from app.galleries.label_consensus import AGREEMENT, EQUAL, ConsensusRule
from ml import registry
from ml.model import Recipe
from ml.types import Spec

MAX_WEIGHED_LABELLERS = 1_000
SOURCE_PATTERN = r"^(labels|subjects|metadata\.[^\x00]{1,255})$"


class Source(BaseModel):
    """Where a training learns for a task which faces are the same: labels, subjects, or a metadata field."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    task: TaskName = "identity"
    collection: CollectionName | None = Field(None, description="without it, the collection of the training")
    origin: str = Field(alias="from", pattern=SOURCE_PATTERN, description="labels, subjects, or metadata.<key>")
    tolerance: float | None = Field(
        None, ge=0, allow_inf_nan=False, strict=True, description="numbers that differ by at most this are the same"
    )
    max_pairs: int | None = Field(
        None, ge=2, le=1_000_000, strict=True, description="the number of pairs to sample, half of them the same"
    )
    labellers: dict[Word, Annotated[float, Field(strict=True, allow_inf_nan=False)]] = Field(
        {}, max_length=MAX_WEIGHED_LABELLERS, description="labels: weight of the votes of single labellers"
    )
    weights: Literal["equal", "agreement"] = Field(
        "equal",
        description="labels: whether other votes weigh 1, or by how well their labeller agrees with others; without "
        "it, as the deployment states",
    )
    quorum: int = Field(
        1,
        ge=1,
        le=MAX_INTEGER,
        strict=True,
        description="labels: how many labellers a majority needs; without it, as the deployment states",
    )

    @property
    def metadata(self) -> str | None:
        return self.origin.removeprefix("metadata.") if self.origin.startswith("metadata.") else None

    @property
    def rule(self) -> ConsensusRule:
        return ConsensusRule(self.labellers, self.quorum, self.weights == AGREEMENT)

    def with_rule(self, rule: ConsensusRule) -> "Source":
        """Return the source with this rule where it states none itself."""
        default = {"weights": AGREEMENT if rule.by_agreement else EQUAL, "quorum": rule.quorum}
        return self.model_copy(update={name: v for name, v in default.items() if name not in self.model_fields_set})


class ComponentChoice(BaseModel):
    """A component by name, with its options."""

    model_config = ConfigDict(extra="forbid")
    name: Word
    options: Metadata = {}

    @property
    def learns_vocabulary(self) -> bool:
        """Whether this is a descriptor that describes by a vocabulary, learned already or not."""
        runs_model_file = registry.component("descriptors", self.name).manifest_type is not None
        return not runs_model_file and not registry.build("descriptors", self.name).is_ready

    @property
    def needs_vocabulary(self) -> bool:
        """Whether this is a descriptor that must learn a vocabulary from crops before it can be used."""
        return not registry.build("descriptors", self.name, **self.options).is_ready


DescriptorChoice = Word | ComponentChoice
"""A descriptor by its name, or by its name and options."""


class Plan(BaseModel):
    """The plan of a training.

    options: every option of the method, including `dim` and `seed` if it has them
    start_from: the model that the fit continues from
    index: the index that searches the embeddings, with all its options; None: the one that suits the collection
    """

    collection: str
    method: str
    descriptors: tuple[ComponentChoice, ...]
    options: dict[str, Any]
    sources: tuple[Source, ...]
    holdout: float
    start_from: str | None = None
    index: ComponentChoice | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe(tuple(Spec(d.name, d.options) for d in self.descriptors))

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections that it reads, the training's own first."""
        return tuple(dict.fromkeys([self.collection, *(self.collection_of(s) for s in self.sources)]))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it learns, the main one first."""
        return tuple(dict.fromkeys(s.task for s in self.sources))

    @property
    def protocol_name(self) -> str:
        """The name, in reports, of the measurement on the held-out people."""
        return f"held-out-{self.holdout:g}"

    def collection_of(self, source: Source) -> str:
        """Return the collection that a source reads from."""
        return source.collection or self.collection
