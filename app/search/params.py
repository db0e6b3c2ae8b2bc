"""The parameters of a search and of a verification."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Json, StringConstraints, model_validator

from app.db import examples
from app.db.field_types import NO_NUL, CollectionName, TaskName
from app.search.filters import Filter

Finite = Annotated[float, Field(allow_inf_nan=False)]
MAX_MATCHES = 4096
MAX_MATCHES_WITH_CROPS = 100
MAX_EXPLAINED_MATCHES, MAX_EXPLAINED_PER_PHOTO = 20, 100  # of one face; of all faces of a photo
MAX_VECTOR_VALUE = 1e15
_WEIGHTED_TASK = r"[a-z][a-z0-9_-]{0,63}(:[0-9]{1,6}(\.[0-9]{1,6})?)?"
Tasks = Annotated[str, StringConstraints(pattern=rf"^{_WEIGHTED_TASK}(,{_WEIGHTED_TASK})*$", max_length=1024)]
MAX_TASKS = 8
ModelOrPointer = Annotated[
    str | None,
    Field(
        max_length=64,
        pattern=NO_NUL,
        description="champion, challenger, previous, or an id of these",
        examples=["challenger"],
    ),
]
FILTER = '{"metadata": {"site": "east", "age": {"gte": 18}}}'


class SearchParams(BaseModel):
    """How to search; all of it in the query string."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(10, ge=1, le=MAX_MATCHES, description="how many matches at most, for each face")
    fpir: Finite | None = Field(
        None,
        gt=0,
        lt=1,
        description="decide at this rate: the share of strangers' searches that may name somebody; default 0.01",
        examples=[0.01],
    )
    threshold: Finite | None = Field(
        None, ge=0, le=100, description="only matches of this similarity or more, 1 to 100", examples=[88]
    )
    fmr: Finite | None = Field(
        None, gt=0, lt=1, description="only matches that pass at this false-match rate of pairs", examples=[0.001]
    )
    task: Tasks = Field(
        "identity",
        description="the criterion of likeness; or several with their weights",
        examples=["identity", "identity:0.7,age:0.3"],
    )
    model: ModelOrPointer = None
    m: int | None = Field(None, ge=1, description="cells probed; all of them: an exact search", examples=[8])
    target_recall: Finite | None = Field(
        None, gt=0, le=1, description="m off the measured curve: the cheapest so good", examples=[0.99]
    )
    max_latency_ms: Finite | None = Field(
        None, gt=0, description="m off the measured curve: the best so fast", examples=[5]
    )
    filter: Json[Filter] | None = Field(None, description=Filter.__doc__, examples=[FILTER])
    group_by: Literal["subject", "face"] = Field(
        "subject", description="subject: each person once, by the nearest face; face: every face by itself"
    )
    include: list[Literal["crop", "explanation"]] = Field(
        [],
        max_length=4,
        description="crop: aligned crops as base64 PNG; explanation: which cells and descriptors made each distance",
        examples=[["crop"], ["crop", "explanation"]],
    )

    @property
    def shares(self) -> dict[str, float]:
        """task -> its weight; the weights sum to 1."""
        parts = [named.partition(":") for named in self.task.split(",")]
        weights = {name: float(weight or 1) for name, _, weight in parts}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    @model_validator(mode="after")
    def _check_tasks(self) -> Self:
        named = self.task.split(",")
        if len(named) > MAX_TASKS:
            raise ValueError(f"at most {MAX_TASKS} tasks are weighed against each other")
        if len({name.partition(":")[0] for name in named}) < len(named):
            raise ValueError("each task is named once, as in identity:0.7,age:0.3")
        if any(weight and not float(weight) for _, _, weight in (name.partition(":") for name in named)):
            raise ValueError("a weight is above 0; leave out a task that is to count for nothing")
        if len(named) > 1 and any(limit is not None for limit in (self.threshold, self.fmr, self.fpir)):
            raise ValueError("a mix of tasks is not calibrated: fpir, fmr and threshold need a single task")
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if sum(limit is not None for limit in (self.threshold, self.fmr, self.fpir)) > 1:
            raise ValueError("give one of fpir, fmr and threshold, not several")
        if self.threshold is not None and self.threshold < 1:
            raise ValueError(
                "threshold is a similarity, which runs from 0 to 100; one below 1 would let everybody pass"
            )
        if self.m is not None and (self.target_recall is not None or self.max_latency_ms is not None):
            raise ValueError("give m, or target_recall and max_latency_ms to choose it, not both")
        if "explanation" in self.include and self.limit > MAX_EXPLAINED_MATCHES:
            raise ValueError(f"explanations come with at most {MAX_EXPLAINED_MATCHES} matches; lower the limit")
        if self.include and self.limit > MAX_MATCHES_WITH_CROPS:
            raise ValueError(f"crops come with at most {MAX_MATCHES_WITH_CROPS} matches; lower the limit")
        return self


class PhotoSearchParams(SearchParams):
    face_selection: Literal["largest", "all"] = Field("largest", description="which faces of the photo are used")
    aligned: bool = Field(False, description="the whole picture is one aligned face")


class VerifyParams(BaseModel):
    model_config = ConfigDict(extra="forbid")
    collection: CollectionName | None = Field(
        None,
        description="whose model and thresholds; may be left out where there is one collection",
        examples=[examples.COLLECTION],
    )
    face_id: str | None = Field(
        None,
        max_length=36,
        pattern=NO_NUL,
        description="compare with this enrolled face",
        examples=[examples.FACE],
    )
    subject: str | None = Field(
        None,
        max_length=255,
        pattern=NO_NUL,
        description="compare with this person's nearest face",
        examples=[examples.SUBJECT],
    )
    task: TaskName = "identity"
    model: ModelOrPointer = None
    fmr: Finite | None = Field(
        None, gt=0, lt=1, description="the false-match rate to decide at; else the default one", examples=[0.001]
    )
    aligned: bool = Field(False, description="each picture is one aligned face")


class VectorIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"vector": [0.12, -0.4, 0.03]}]})
    vector: list[Annotated[float, Field(allow_inf_nan=False, ge=-MAX_VECTOR_VALUE, le=MAX_VECTOR_VALUE)]] = Field(
        min_length=1, max_length=65_536, description="in the space of the model's embeddings"
    )
