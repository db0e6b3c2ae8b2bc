"""The interface of an embedder: fit it to a training set, embed rows, save it, and load it bit for bit."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ml.distances import EUCLIDEAN, Distance
from ml.errors import CannotGoOn, Corrupt, FitFailed, NotFinite, NotFitted, WrongShape
from ml.files import parse_json
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.options import flatten_options, from_options, list_options, option, use_current_names
from ml.types import Ids, Rows

Kind = TypeVar("Kind", bound="Embedder")
Progress = Callable[[int, int, dict[str, float]], None]
"""Called as progress(step, steps, values) from time to time during a fit. It may raise an exception to stop the fit."""


def ignore_progress(step: int, steps: int, values: dict[str, float]) -> None:
    """Ignore the progress of a fit."""


def offset_progress(done: int, total: int, progress: Progress) -> Progress:
    """Report one part of a fit, which begins after `done` of `total` steps, as progress of the whole fit."""
    return lambda step, _, values: progress(done + step, total, values)


@dataclass(frozen=True, eq=False)
class TaskData:
    """The labels of one task. Faces i and j of `faces` are the same if |values_i - values_j| <= tolerance.

    faces: (n,) indexes of rows of the training set
    values: (n,) float64, such as the person's number, the age in years or the class of the expression; NaN if unknown
    people: (n,) int64 person of each face, -1 if unknown; people are held out with all of their faces
    pairs: (P, 2) indexes of rows; same: (P,) bool. These explicit labels override `values`.
    weights: (P,) float32 weights of the explicit labels
    """

    task: str
    faces: Ids
    values: NDArray[np.float64]
    people: Ids
    tolerance: float = 0.0
    pairs: Ids = field(default_factory=lambda: np.empty((0, 2), np.int64))
    same: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    weights: Rows = field(default_factory=lambda: np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The descriptors of all faces of a training, and the labels of each task.

    rows: (N, D) float32
    blocks: the widths of the descriptors that are concatenated in a row, which sum to D; empty for one descriptor
    """

    rows: Rows
    tasks: tuple[TaskData, ...]
    blocks: tuple[int, ...] = ()

    def task(self, name: str) -> TaskData:
        """Return the labels of the task of this name."""
        return next(t for t in self.tasks if t.task == name)

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each descriptor in a row."""
        return self.blocks or (self.rows.shape[1],)


@dataclass(frozen=True, eq=False)
class Maps:
    """The linear maps of an embedding: z = sum_s shares_s (projections_s row - offsets_s), compared by |z_i - z_j|^2.

    rows: (N, D) rows to which the maps are applied; projections: (k, d, D), or None for a single identity map
    offsets: (k, d); shares: (N, k), the shares of each row in the k maps
    """

    rows: Rows
    projections: Rows | None
    offsets: Rows
    shares: Rows

    @classmethod
    def single(
        cls, rows: Rows, projection: Rows | None = None, offset: Rows | None = None, scale: Rows | None = None
    ) -> Self:
        """Make a single map from a projection (d, D) and an offset (d,); scale: (N,) factor of each row's z."""
        return cls(
            rows,
            None if projection is None else projection[None],
            np.zeros((1, rows.shape[1]), np.float32) if offset is None else offset[None],
            np.ones((len(rows), 1), np.float32) if scale is None else scale[:, None],
        )


NUMERICAL_ERRORS = (ArithmeticError, MemoryError, RuntimeError, ValueError)
"""What NumPy and torch raise for numbers that overflow, singular matrices, and arrays that are empty or too large."""


@dataclass
class Embedder(ABC):
    """A learned map from descriptors to a space in which a small distance means alike.

    Options are dataclass fields made by `option`; related options are grouped (see `ml.options`).
    learned: named arrays that the fit sets
    notes: numbers about the fit, for a report or a refit ("steps", "loss", "held_out", ...)
    tasks: the tasks it was fitted to

    Convention:
        rows: (N, D) float32, finite; N may be 0
        embed returns (N, dim of the task) float32, compared by `metric`
    """

    seed: int = option(0, "seed of everything random in the fit", low=0)
    normalises_rows: ClassVar[bool] = False
    """Whether rows are divided by their norm before the learned maps are applied."""

    def __post_init__(self) -> None:
        self.learned: dict[str, NDArray[Any]] = {}
        self.notes: dict[str, Any] = {}
        self.tasks: tuple[str, ...] = ("identity",)
        self.start_model: Embedder | None = None

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Build an embedder from flat options, whatever their group. Raises TypeError for an unknown option."""
        return from_options(cls, options)

    def options(self) -> dict[str, Any]:
        """Return all options as a flat dictionary, as `from_options` takes them."""
        return flatten_options(self)

    def with_options(self, **options: Any) -> Self:
        """Return an unfitted embedder of the same method with some options changed."""
        return self.from_options(**self.options() | use_current_names(list_options(type(self)), options))

    @abstractmethod
    def _fit(self, data: TrainingSet, progress: Progress) -> None: ...

    @abstractmethod
    def _embed(self, rows: Rows, task: str) -> Rows: ...

    @property
    def metric(self) -> Distance:
        """The distance by which embeddings are compared. Some methods learn it during the fit."""
        return EUCLIDEAN

    @property
    @abstractmethod
    def width(self) -> int | None:
        """The width D of the rows it was fitted to; None if it takes rows of any width."""

    @property
    def needs_fit(self) -> bool:
        return True

    def limit_dim(self, width: int) -> int:
        """Return how many numbers the option `dim` may ask for at most, for rows of so many numbers."""
        return width

    def start_from(self, model: "Embedder") -> Self:
        """Make the next fit start from what `model` has learned; it must be given the same descriptors.

        Options that determine the shape of the learned arrays, such as `dim`, are taken over from the model.
        Raises CannotGoOn, NotFitted.
        """
        raise CannotGoOn(f"{type(self).__name__} always starts anew; it cannot start from another model")

    def linear_map(self) -> tuple[Rows, Rows] | None:
        """Return the projection (d, D) and offset (d,) of z = projection x - offset, before any normalisation.

        Returns None if the embedding is not one linear map of the row. Raises NotFitted.
        """
        return None

    def refit_options(self) -> dict[str, Any]:
        """Return options for a fit to everybody that repeats what this fit found best on the held-out people."""
        known = self.options()
        if "steps" not in self.notes or "steps" not in known:
            return {}
        return {"steps": self.notes["steps"]} | ({"held_out": 0.0} if "held_out" in known else {})

    def repeat_choice(self, like: "Embedder") -> None:
        """Record what `like`, which this fit repeats, has chosen by held-out people, if it has chosen anything."""
        if "choice" in like.notes:
            self.notes["choice"] = like.notes["choice"]

    def fit(self, data: TrainingSet, *, progress: Progress = ignore_progress) -> Self:
        """Fit to a training set and return the embedder itself.

        The same data, options and seed give the same result on the same processor with the same number of threads.
        Raises TooFewPairs, NotFinite, WrongShape, FitFailed, and CannotGoOn if it starts from a model of other
        descriptors.
        """
        self._check(data)
        self.tasks = tuple(t.task for t in data.tasks) or ("identity",)
        try:
            self._fit(data, progress)
        except NUMERICAL_ERRORS as error:
            raise self._describe_failure(str(error)) from error
        if not all(np.isfinite(array).all() for array in self.learned.values() if array.dtype.kind == "f"):
            raise self._describe_failure("it learned NaN or infinity")
        # a transposed array is multiplied in another order, so it would not embed bit for bit like its saved copy
        self.learned = {name: np.asarray(array, order="C") for name, array in self.learned.items()}
        self.start_model = None
        return self

    def _describe_failure(self, reason: str) -> FitFailed:
        defaults = self.from_options().options()
        changed = {name: value for name, value in self.options().items() if value != defaults[name]}
        return FitFailed(type(self).__name__, changed, reason)

    def _check(self, data: TrainingSet) -> None:
        if data.rows.ndim != 2 or data.rows.dtype != np.float32:
            raise WrongShape("rows", "(N, D) float32", f"{data.rows.shape} {data.rows.dtype}")
        if not np.isfinite(data.rows).all():
            raise NotFinite("the descriptors of the training set")
        width = data.rows.shape[1]
        if sum(data.widths) != width:
            raise WrongShape("blocks", f"widths that sum to {width}", data.blocks)
        if self.start_model and self.start_model.width not in (None, width):
            problem = f"the start model takes {self.start_model.width} numbers per face, these descriptors have {width}"
            raise CannotGoOn(f"{problem}; use the descriptors that it was trained on")

    def embed(self, rows: Rows, task: str = "identity") -> Rows:
        """Embed (N, D) rows for a task: (N, d) float32. Raises NotFitted, WrongShape, NotFinite."""
        if self.width is None and self.needs_fit:
            raise NotFitted(type(self).__name__)
        if rows.ndim != 2 or (self.width is not None and rows.shape[1] != self.width):
            raise WrongShape("rows", f"(N, {self.width})", rows.shape)
        if task not in self.tasks:
            raise WrongShape("task", " or ".join(self.tasks), repr(task))
        if not np.isfinite(rows).all():
            raise NotFinite("a descriptor")
        return np.ascontiguousarray(self._embed(rows.astype(np.float32, copy=False), task), np.float32)

    def maps(self, rows: Rows, task: str = "identity") -> Maps | None:
        """Return the linear maps that `embed` applies to (N, D) rows, from which a distance can be explained.

        Returns None if the embedding is not made of linear maps.
        """
        return None

    def split_projections(self) -> dict[str, ProjectionParts]:
        """Split the projection of each task into what all tasks share and what is its own.

        Returns {} if the method does not learn a projection for each task. Raises NotFitted.
        """
        return {}

    def save(self, folder: Path) -> None:
        """Write `embedder.json` and `embedder.safetensors` to a folder. They contain numbers and names, but no code.

        Raises OSError; `save_file` of safetensors would raise an error of its own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "embedder.safetensors").write_bytes(save(self.learned))
        state = {"options": self.options(), "tasks": self.tasks, "notes": self.notes}
        (folder / "embedder.json").write_text(json.dumps(state, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load what `save` wrote. Raises Corrupt."""
        try:
            state = parse_json((folder / "embedder.json").read_text())
            loaded = cls.from_options(**state["options"])
            loaded.learned = load((folder / "embedder.safetensors").read_bytes())
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise Corrupt(f"the embedder in {folder.name} cannot be read: {error}") from error
        loaded.tasks, loaded.notes = tuple(state["tasks"]), state["notes"]
        return loaded


def require_fitted(owner: Embedder, model: Embedder, kind: type[Kind]) -> Kind:
    """Return the model if it is of this kind and fitted. Raises CannotGoOn, NotFitted."""
    if not isinstance(model, kind):
        raise CannotGoOn(f"{type(owner).__name__} can start from {kind.__name__}, not from {type(model).__name__}")
    if not model.learned:
        raise NotFitted(type(model).__name__)
    return model
