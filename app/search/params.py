"""The parameters of a search and of a verification."""

from functools import cached_property, lru_cache
from typing import Annotated, Literal, Self, TypeVar
from urllib.parse import parse_qsl

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Json,
    StringConstraints,
    ValidationError,
    model_validator,
)

from app.db import examples
from app.db.field_types import MAX_INTEGER, NO_NUL, CollectionName, QuerySource, TaskName
from app.db.tables import BUILT_IN_TASK
from app.errors import Invalid
from app.search.filters import Filter, check_filter_size

Finite = Annotated[float, Field(allow_inf_nan=False)]
MAX_MATCHES = 4096  # of one face; of all faces of a photo
MAX_SHORT_MATCHES = 50
MAX_RANKED_CANDIDATES = 65_536
MAX_MATCHES_WITH_CROPS, MAX_CROPS_PER_PHOTO = 100, 400  # of one face; of all faces of a photo
MAX_EXPLAINED_MATCHES, MAX_EXPLAINED_PER_PHOTO = 20, 100  # of one face; of all faces of a photo
MAX_VECTOR_VALUE, MAX_VECTOR_NUMBERS = 1e15, 65_536
_WEIGHTED_TASK = r"[a-z][a-z0-9_-]{0,63}(:[0-9]{1,6}(\.[0-9]{1,6})?)?"
Tasks = Annotated[str, StringConstraints(pattern=rf"^{_WEIGHTED_TASK}(,{_WEIGHTED_TASK})*$", max_length=1024)]
MAX_TASKS = 8
VectorValue = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MAX_VECTOR_VALUE, le=MAX_VECTOR_VALUE)]
ModelOrPointer = Annotated[
    str | None,
    Field(
        max_length=64,
        pattern=NO_NUL,
        description="champion, challenger, previous, or the id of one of these models",
        examples=["challenger"],
    ),
]
FILTER = '{"metadata": {"site": "east", "age": {"gte": 18}}}'
MAX_CACHED_QUERIES, MAX_CACHED_QUERY_BYTES = 256, 512
USUAL_PARAMETERS = {"limit", "fpir", "threshold", "fmr", "task", "group_by", "source", "face_selection", "aligned"}


class SearchParams(BaseModel):
    """The parameters of a search, all in the query string."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(10, ge=1, le=MAX_MATCHES, description="the largest number of matches for each face")
    fpir: Finite | None = Field(
        None,
        gt=0,
        lt=1,
        description="the share of strangers' searches that may name somebody; default 0.01",
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
        description="the criterion of likeness, or several with their weights",
        examples=["identity", "identity:0.7,age:0.3"],
    )
    model: ModelOrPointer = None
    m: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="the number of cells to probe; with all cells, the search is exact. With fewer than by default the "
        "next person may be missed, so the decision is a cautious one, from pairs",
        examples=[8],
    )
    candidates: int | None = Field(
        None,
        ge=1,
        le=MAX_RANKED_CANDIDATES,
        description="of an index with two stages: how many faces the second stage ranks, at least twice the matches. "
        "As with `m`, with fewer than by default the decision is a cautious one",
        examples=[100],
    )
    target_recall: Finite | None = Field(
        None, gt=0, le=1, description="choose the smallest m with this recall on the measured curve", examples=[0.99]
    )
    max_latency_ms: Finite | None = Field(
        None, gt=0, description="choose the largest m within this latency on the measured curve", examples=[5]
    )
    filter: Annotated[Json[Filter] | None, BeforeValidator(check_filter_size)] = Field(
        None, description=Filter.__doc__, examples=[FILTER]
    )
    group_by: Literal["subject", "face"] = Field(
        "subject", description="subject: each person once, by the nearest face; face: every face separately"
    )
    include: list[Literal["crop", "explanation"]] = Field(
        [],
        max_length=4,
        description="crop: aligned crops as base64 PNG; explanation: the parts of each distance by descriptor and cell",
        examples=[["crop"], ["crop", "explanation"]],
    )

    @cached_property
    def shares(self) -> dict[str, float]:
        """task -> its weight; the weights sum to 1."""
        parts = [named.partition(":") for named in self.task.split(",")]
        weights = {name: float(weight or 1) for name, _, weight in parts}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    @cached_property
    def is_short(self) -> bool:
        """Whether a search takes no longer than by default, apart from the size of the index."""
        is_default = self.m is self.candidates is self.target_recall is self.max_latency_ms is None
        return is_default and self.filter is None and not self.include and self.limit <= MAX_SHORT_MATCHES

    @model_validator(mode="after")
    def _check_tasks(self) -> Self:
        named = self.task.split(",")
        if len(named) > MAX_TASKS:
            raise ValueError(f"at most {MAX_TASKS} tasks can be mixed")
        if len({name.partition(":")[0] for name in named}) < len(named):
            raise ValueError("name each task once, as in identity:0.7,age:0.3")
        if any(weight and not float(weight) for _, _, weight in (name.partition(":") for name in named)):
            raise ValueError("a weight must be above 0; leave out a task that should not count")
        if len(named) > 1 and any(limit is not None for limit in (self.threshold, self.fmr, self.fpir)):
            raise ValueError("a mix of tasks is not calibrated: fpir, fmr and threshold need a single task")
        if self.fpir is not None and named[0].partition(":")[0] != BUILT_IN_TASK:
            raise ValueError(
                "fpir limits how often strangers are named, and only identity names people; give fmr instead"
            )
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if sum(limit is not None for limit in (self.threshold, self.fmr, self.fpir)) > 1:
            raise ValueError("give one of fpir, fmr and threshold, not several")
        if self.threshold is not None and self.threshold < 1:
            raise ValueError("threshold is a similarity from 0 to 100; below 1, everybody would pass")
        is_chosen_by_curve = self.target_recall is not None or self.max_latency_ms is not None
        if is_chosen_by_curve and (self.m is not None or self.candidates is not None):
            raise ValueError("give m and candidates, or target_recall and max_latency_ms to choose them, not both")
        if "explanation" in self.include and self.limit > MAX_EXPLAINED_MATCHES:
            raise ValueError(f"explanations come with at most {MAX_EXPLAINED_MATCHES} matches; lower the limit")
        if self.include and self.limit > MAX_MATCHES_WITH_CROPS:
            raise ValueError(f"crops come with at most {MAX_MATCHES_WITH_CROPS} matches; lower the limit")
        return self


class QuerySearchParams(SearchParams):
    """The parameters of a search for a face that is not enrolled."""

    source: QuerySource | None = Field(
        None,
        description="what the query comes from, if faces are enrolled with sources; `guess` if that is not known",
    )


class PhotoSearchParams(QuerySearchParams):
    """The parameters of a search by photo."""

    face_selection: Literal["largest", "all"] = Field(
        "largest",
        description="which faces of the photo to search with; all have at most 4,096 matches together, 400 with crops",
    )
    aligned: bool = Field(False, description="the photo is one aligned face: skip detection")

    def check_size(self, faces: int) -> None:
        """Raises Invalid if the answer for this number of faces could be too large."""
        kind, max_count = ("crops", MAX_CROPS_PER_PHOTO) if "crop" in self.include else ("matches", MAX_MATCHES)
        if faces * self.limit > max_count:
            allowed = max_count // faces
            ask = f"ask for a limit of at most {allowed}, or " if allowed else ""
            raise Invalid(
                f"an answer has at most {max_count:,} {kind} for all faces of a photo, and {faces} faces with a limit "
                f"of {self.limit} may have {faces * self.limit:,}: {ask}search with the largest face alone "
                "(face_selection=largest)",
                faces=faces,
                limit=allowed,
            )


class VerifyParams(BaseModel):
    """The parameters of a verification, all in the query string."""

    model_config = ConfigDict(extra="forbid")
    collection: CollectionName | None = Field(
        None,
        description="the collection whose model and thresholds are used; optional if the key has only one",
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
        None,
        gt=0,
        lt=1,
        description="the false-match rate to decide at; without it, the default rate. With `subject`, it is that of "
        "all of the person's faces together",
        examples=[0.001],
    )
    source: QuerySource | None = Field(None, description="what the first photo comes from")
    second_source: QuerySource | None = Field(None, description="what the second photo comes from")
    aligned: bool = Field(False, description="each photo is one aligned face: skip detection")


class VectorIn(BaseModel):
    """A vector to search with."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"vector": [0.12, -0.4, 0.03]}]})
    vector: Annotated[list[VectorValue], FailFast()] = Field(
        min_length=1, max_length=MAX_VECTOR_NUMBERS, description="a vector in the space of the model's embeddings"
    )


Params = TypeVar("Params", bound=QuerySearchParams)


def parse_usual(query: bytes, shape: type[Params]) -> Params | None:
    """Return the parameters in a query string; None for those that are rarely sent, and for wrong ones.

    FastAPI looks at each parameter of a route at every request, which takes as long as describing a face.
    """
    if len(query) > MAX_CACHED_QUERY_BYTES:
        return None
    params = _parse(query, shape)
    return params if isinstance(params, shape) else None


@lru_cache(MAX_CACHED_QUERIES)
def _parse(query: bytes, shape: type[QuerySearchParams]) -> QuerySearchParams | None:
    if query.count(b"&") >= len(USUAL_PARAMETERS):
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    values = dict(pairs)
    known = USUAL_PARAMETERS & shape.model_fields.keys()
    if len(values) < len(pairs) or not values.keys() <= known or not all(values.values()):
        return None
    try:
        return shape.model_validate(values)
    except ValidationError:
        return None
