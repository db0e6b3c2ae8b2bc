"""What every embedder promises: fit on a training set, embed rows, save and load bit for bit."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ml.errors import CannotGoOn, Corrupt, NotFinite, NotFitted, WrongShape
from ml.metric import EUCLIDEAN, Metric
from ml.types import Ids, Rows

Kind = TypeVar("Kind", bound="Embedder")
Progress = Callable[[int, int, dict[str, float]], None]
"""progress(step, steps, values): called now and then while fitting; it may raise to stop the fit."""


def silent(step: int, steps: int, values: dict[str, float]) -> None:
    """The progress of those who do not look."""


def after(done: int, whole: int, progress: Progress) -> Progress:
    """Tells of a part of the work, which follows `done` steps of the whole, as of the whole."""
    return lambda step, _, values: progress(done + step, whole, values)


@dataclass(frozen=True, eq=False)
class TaskData:
    """What is known of one task. Two faces i, j of `faces` are "the same" where |values_i - values_j| <= tolerance.

    faces: (n,) indexes into the rows of the training set
    values: (n,) float64; identity: the person's number; age: years; expression: the class; NaN: unknown
    people: (n,) int64 person's number, -1 unknown: who is kept together when a fold is held out
    pairs: (P, 2) indexes into the rows; same: (P,) bool. Explicit labels: they override what `values` says
    weights: (P,) float32, how much each explicit pair counts
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
    """Descriptors of all faces taken part, and what is known of each task.

    rows: (N, D) float32; blocks: the widths of the descriptors that lie one after the other in a row, their sum D;
    empty where there is one
    """

    rows: Rows
    tasks: tuple[TaskData, ...]
    blocks: tuple[int, ...] = ()

    def task(self, name: str) -> TaskData:
        return next(t for t in self.tasks if t.task == name)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of each descriptor in a row."""
        return self.blocks or (self.rows.shape[1],)


@dataclass(frozen=True, eq=False)
class Maps:
    """How rows were embedded, opened up: z = sum_s shares_s (projections_s row - offsets_s), compared by |z_i - z_j|^2.

    rows: (N, D) that the maps act on; projections: (k, d, D), None where there is one and it is the identity
    offsets: (k, d); shares: (N, k), each row's own
    """

    rows: Rows
    projections: Rows | None
    offsets: Rows
    shares: Rows

    @classmethod
    def one(
        cls, rows: Rows, projection: Rows | None = None, offset: Rows | None = None, scale: Rows | None = None
    ) -> Self:
        """A single map, (d, D) and (d,), each row's z times its `scale` (N,)."""
        return cls(
            rows,
            None if projection is None else projection[None],
            np.zeros((1, rows.shape[1]), np.float32) if offset is None else offset[None],
            np.ones((len(rows), 1), np.float32) if scale is None else scale[:, None],
        )


@dataclass
class Embedder(ABC):
    """A learned map from descriptors to the space in which near means alike.

    Options are dataclass fields; what was learned is a dict of arrays, kept apart from them (`learned`).
    `notes` holds plain facts of the fit that a refit or a report needs ("steps", "loss", ...).

    Convention:
        rows: (N, D) float32, finite; N may be 0
        embed returns: (N, dim of the task) float32, compared as `metric` says
    """

    seed: int = 0

    def __post_init__(self) -> None:
        self.learned: dict[str, NDArray[Any]] = {}
        self.notes: dict[str, Any] = {}
        self.tasks: tuple[str, ...] = ("identity",)
        self.before: Embedder | None = None

    @abstractmethod
    def _fit(self, data: TrainingSet, progress: Progress) -> None: ...

    @abstractmethod
    def _embed(self, rows: Rows, task: str) -> Rows: ...

    @property
    def metric(self) -> Metric:
        """How its embeddings are compared; known once it is fitted."""
        return EUCLIDEAN

    @property
    @abstractmethod
    def width(self) -> int | None:
        """D, the width of the descriptors it was fitted to; None where any width will do."""

    def go_on_from(self, before: "Embedder") -> Self:
        """The next fit starts from what that one learned, not anew; it must take the same descriptors.

        Options that give what was learned its shape, `dim` above all, are taken over. Raises CannotGoOn, NotFitted.
        """
        raise CannotGoOn(f"{type(self).__name__} always learns anew; it does not go on from another")

    def _fitted(self, before: "Embedder", kind: type[Kind]) -> Kind:
        """The same, if it is of this kind and has learned. Raises CannotGoOn, NotFitted."""
        if not isinstance(before, kind):
            raise CannotGoOn(f"{type(self).__name__} goes on from {kind.__name__}, not from {type(before).__name__}")
        if not before.learned:
            raise NotFitted(type(before).__name__)
        return before

    def chosen(self) -> dict[str, Any]:
        """Options under which a fit on everybody repeats what this one found best on the people it held out."""
        known = {f.name for f in fields(self)}
        found = {"steps": self.notes["steps"], "held_out": 0.0} if "steps" in self.notes and "steps" in known else {}
        return {name: value for name, value in found.items() if name in known}

    def fit(self, data: TrainingSet, *, progress: Progress = silent) -> Self:
        """Learn. The same data, options and seed give the same result; another processor or number of threads rounds
        otherwise, and a descent may then take another way to about as good an end.

        Raises TooFewPairs, NotFinite, WrongShape, CannotGoOn where `go_on_from` named what took other descriptors.
        """
        if data.rows.ndim != 2 or data.rows.dtype != np.float32:
            raise WrongShape("rows", "(N, D) float32", f"{data.rows.shape} {data.rows.dtype}")
        if not np.isfinite(data.rows).all():
            raise NotFinite("the descriptors of the training set")
        if sum(data.widths) != data.rows.shape[1]:
            raise WrongShape("blocks", f"widths that sum to {data.rows.shape[1]}", data.blocks)
        if self.before and self.before.width not in (None, data.rows.shape[1]):
            found = f"it takes {self.before.width} numbers a face, these descriptors have {data.rows.shape[1]}"
            raise CannotGoOn(f"{found}; go on with the descriptors that it was learned from")
        self.tasks = tuple(t.task for t in data.tasks) or ("identity",)
        self._fit(data, progress)
        # a transposed array multiplies in another order, and would not embed bit for bit as its saved copy does
        self.learned = {name: np.asarray(found, order="C") for name, found in self.learned.items()}
        self.before = None
        return self

    def embed(self, rows: Rows, task: str = "identity") -> Rows:
        """Where these faces lie for a task. Raises NotFitted, WrongShape, NotFinite."""
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
        """The linear maps that `embed` applied to these rows, from which a distance can be taken apart; None where it
        is not made of such."""
        return None

    @property
    def needs_fit(self) -> bool:
        return True

    def save(self, folder: Path) -> None:
        """Writes `embedder.json` and `embedder.safetensors`: numbers and names, no code."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.learned, folder / "embedder.safetensors")
        state = {"options": asdict(self), "tasks": self.tasks, "notes": self.notes}
        (folder / "embedder.json").write_text(json.dumps(state, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What `save` wrote. Raises Corrupt."""
        try:
            state = json.loads((folder / "embedder.json").read_text())
            made = cls(**state["options"])
            made.learned = load_file(folder / "embedder.safetensors")
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise Corrupt(f"the embedder in {folder.name} cannot be read: {error}") from error
        made.tasks, made.notes = tuple(state["tasks"]), state["notes"]
        return made
