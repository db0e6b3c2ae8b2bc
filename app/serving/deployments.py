"""The deployments that this process serves, with their loaded indexes. An update replaces them by one assignment."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.db.tables import now
from app.serving.batching import Slots
from app.serving.faces.face_table import FaceTable
from app.serving.index_builder import IndexKey
from app.serving.labels.constraints import ServedConstraints
from app.serving.limits.photo_failures import report_photo_failure
from app.serving.loaded_index import LoadedIndex
from app.serving.scores import Scores
from ml.indexes.base import Index, Neighbours
from ml.model import Model
from ml.types import CropKind, Crops, Ids, Rows

DeploymentKey = tuple[str, str]


@dataclass(frozen=True)
class Validity:
    """Whether what was measured of a model in a deployment still holds: see `ValidityChecks`.

    hubs: owners whom no search names by itself until the gallery is measured anew
    is_outdated: nobody is named until then, since most of the measured faces are gone, and others have come, or since
        strangers are surely named more often than was measured; is_due: the gallery should be measured anew
    is_unchecked: it has not been checked since the index was loaded
    """

    hubs: frozenset[int] = frozenset()
    is_outdated: bool = False
    is_due: bool = False
    is_unchecked: bool = False


VALID, UNCHECKED = Validity(), Validity(is_unchecked=True)
MAX_UNCHECKED_SECONDS = 120.0
"""After a load. If the check fails or does not end by then, the threshold counts as it was measured."""


@dataclass(frozen=True, eq=False)
class ServedDeployment:
    """A deployment as this process serves it.

    pointers: champion, challenger, previous -> model id; indexes, scores: model id -> its loaded index, its scores
    updated_at: when the row of the deployment was last changed
    faces: what answers show of the collection's faces; constraints: what the settled labels mean for its searches
    shadow_share: the share of searches that the challenger answers too, 0 to 1
    validities: model id -> whether what was measured of it still holds, as far as that is known: see `find_validity`
    """

    collection: str
    task: str
    collection_created_at: float
    version: int
    pointers: Mapping[str, str | None]
    indexes: Mapping[str, LoadedIndex]
    scores: Mapping[str, Scores]
    updated_at: float
    faces: FaceTable
    constraints: ServedConstraints
    shadow_share: float = 0.0
    validities: Mapping[str, Validity] = field(default_factory=dict)

    @property
    def champion(self) -> LoadedIndex:
        return self.indexes[str(self.pointers["champion"])]

    def find_index(self, model: str | None) -> LoadedIndex | None:
        """Return the index of a model, by pointer or id; None if it is not loaded."""
        return self.indexes.get(str(self.pointers.get(model or "champion", model)))

    def can_be_checked(self, model_id: str) -> bool:
        """Whether a threshold was measured for a loaded model, of a gallery that is known."""
        scores = self.scores[model_id]
        return self.task == "identity" and scores.calibrated_at_change is not None and scores.calibrated_at_count > 0

    def find_validity(self, model_id: str) -> Validity:
        """Return whether what was measured of a loaded model still holds: by the last check, until the next one."""
        known = self.validities.get(model_id)
        if known is not None or not self.can_be_checked(model_id):
            return known or VALID
        is_late = time.monotonic() - self.indexes[model_id].loaded_at > MAX_UNCHECKED_SECONDS
        return VALID if is_late else UNCHECKED


@dataclass(frozen=True)
class SearchEffort:
    """How many cells a search probes, and how many candidates a second stage ranks; None: the index's defaults."""

    m: int | None = None
    candidates: int | None = None


DEFAULT_EFFORT = SearchEffort()


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One model and its index for the whole of a request, whatever is published meanwhile.

    change: the collection's last change that the index, the faces' names and the labels' constraints contain
    slots: for heavy work; None if the request was admitted without one
    faces: the collection's faces; None if the database must be read, since the index holds a later change, or this
        process has written one
    """

    deployment: ServedDeployment
    loaded_index: LoadedIndex
    slots: Slots | None
    change: int
    faces: FaceTable | None

    @property
    def model(self) -> Model:
        return self.loaded_index.model

    @property
    def index(self) -> Index:
        """The index, for its properties only; use `search` to search it."""
        return self.loaded_index.index

    @property
    def face_count(self) -> int:
        """How many faces the index holds. While a face is replaced in it, it holds one less, which counts nowhere."""
        return self.loaded_index.state.vectors

    @property
    def usable_face_count(self) -> int:
        """How many of them may be found: see `may_be_used`."""
        return self.face_count - (self.faces or self.deployment.faces).count_ended(now())

    @property
    def task(self) -> str:
        return self.deployment.task

    @property
    def index_generation(self) -> str:
        """The state of the index, `<deployment version>.<change>`, which is the same in all processes."""
        return f"{self.deployment.version}.{self.change}"

    @property
    def validity(self) -> Validity:
        """Whether what was measured of this model still holds."""
        return self.deployment.find_validity(self.model.id)

    @property
    def scores(self) -> Scores:
        """The calibrated scores of this model in this collection."""
        return self.deployment.scores[self.model.id]

    def search(
        self, rows: Rows, k: int, effort: SearchEffort = DEFAULT_EFFORT, allowed: Ids | None = None
    ) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) rows; see `Index.search`. Raises Busy, WrongShape, NotFinite."""
        if self.slots is None:
            return self.loaded_index.search(rows, k, effort.m, allowed, effort.candidates)
        if allowed is not None:
            with self.slots.reserve():
                return self.loaded_index.search(rows, k, effort.m, allowed, effort.candidates)
        return self.slots.run_batched(
            (self.loaded_index, k, effort), rows, lambda parts: _search_batch(self.loaded_index, parts, k, effort)
        )

    def correct(self, rows: Rows, sources: Sequence[str | None]) -> Rows:
        """Correct (N, dim) rows of faces from these N sources as the rows of the index are corrected."""
        return self.loaded_index.compensation.correct(rows, sources)

    def embed(self, crops: Mapping[CropKind, Crops]) -> Rows:
        """Embed (N, ...) crops of each kind as (N, dim) rows. Raises Busy, PhotoFailed."""
        key = (self.model.id, self.task)
        assert self.slots is not None, "the event loop embeds nothing"
        with report_photo_failure("embed"):
            return self.slots.run_batched(key, crops, lambda parts: _embed_batch(self.model, self.task, parts))


def _search_batch(index: LoadedIndex, parts: list[Rows], k: int, effort: SearchEffort) -> list[Neighbours]:
    """Search the rows of several requests at once, and return the result of each."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    result = index.search(rows, k, effort.m, candidates=effort.candidates)
    if len(parts) == 1:
        return [result]
    ends = np.cumsum([len(p) for p in parts])[:-1]
    split = (np.split(a, ends) for a in (result.ids, result.distances, result.fraction))
    return [Neighbours(i, d, f, result.m) for i, d, f in zip(*split, strict=True)]


def _embed_batch(model: Model, task: str, parts: list[Mapping[CropKind, Crops]]) -> list[Rows]:
    if len(parts) == 1:
        return [model.embed(model.describe(parts[0]), task)]
    kinds = model.recipe.crops
    rows = model.describe({kind: np.concatenate([p[kind] for p in parts]) for kind in kinds})
    ends = np.cumsum([len(p[kinds[0]]) for p in parts])[:-1]
    return np.split(model.embed(rows, task), ends)


def drop_indexes_of(deployment: DeploymentKey, known: dict[IndexKey, Any]) -> None:
    """Drop what is known of the indexes of a deployment."""
    for key in [key for key in list(known) if (key.collection, key.task) == deployment]:
        known.pop(key, None)


class Registry:
    """The served deployments by (collection, task). Only the follower writes it; requests read it without a lock."""

    def __init__(self) -> None:
        self._served: dict[DeploymentKey, ServedDeployment] = {}
        self._changed = threading.Condition()

    def get(self, key: DeploymentKey) -> ServedDeployment | None:
        return self._served.get(key)

    def all(self) -> tuple[ServedDeployment, ...]:
        return tuple(self._served.values())

    def put(self, served: ServedDeployment) -> None:
        self._replace({**self._served, (served.collection, served.task): served})

    def drop(self, key: DeploymentKey) -> None:
        self._replace({k: v for k, v in self._served.items() if k != key})

    def announce(self) -> None:
        """Wake those who wait, since an index has changed."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds, which is checked after every change. Returns whether it did in time."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def _replace(self, served: dict[DeploymentKey, ServedDeployment]) -> None:
        with self._changed:
            self._served = served
            self._changed.notify_all()


class RecentlyRequested:
    """The models that requests named recently. The follower loads them beside the champions, and drops the others."""

    def __init__(self, kept_seconds: float = 600.0) -> None:
        self._kept_seconds = kept_seconds
        self._requested_at: dict[tuple[DeploymentKey, str], float] = {}

    def record(self, key: DeploymentKey, model_id: str) -> None:
        self._requested_at[key, model_id] = time.monotonic()

    def forget(self, key: DeploymentKey) -> None:
        """Drop the requests for a deployment that is no longer served."""
        for requested in [requested for requested in list(self._requested_at) if requested[0] == key]:
            self._requested_at.pop(requested, None)

    def contains(self, key: DeploymentKey, model_id: str) -> bool:
        return time.monotonic() - self._requested_at.get((key, model_id), -self._kept_seconds) < self._kept_seconds
