"""What this process serves: deployments with their indexes, each replaced by one assignment."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from app.serving.batching import Slots
from app.serving.loaded_index import Held
from app.serving.scores import Scores
from ml.indexes.base import Index, Neighbours
from ml.model import Model
from ml.types import CropKind, Crops, Ids, Rows

Key = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Served:
    """A deployment as this process serves it.

    pointers: champion, challenger, previous -> generation id; held, facts: generation id -> its index, its scores
    born: when its collection was made; told_at: when its row was last changed
    """

    collection: str
    task: str
    born: float
    version: int
    pointers: Mapping[str, str | None]
    held: Mapping[str, Held]
    facts: Mapping[str, Scores]
    told_at: float

    @property
    def champion(self) -> Held:
        return self.held[str(self.pointers["champion"])]

    def named(self, model: str | None) -> Held | None:
        """By pointer or id; None where it is not held."""
        return self.held.get(str(self.pointers.get(model or "champion", model)))


@dataclass(frozen=True, eq=False)
class Serving:
    """One generation and its index, for the whole of a request, whatever is published meanwhile."""

    served: Served
    held: Held
    slots: Slots
    change: int

    @property
    def generation(self) -> Model:
        return self.held.generation

    @property
    def index(self) -> Index:
        """To look at; searched through `search` alone."""
        return self.held.index

    @property
    def task(self) -> str:
        return self.served.task

    @property
    def index_generation(self) -> str:
        """Another after each move of a pointer and each change of the collection; alike in all processes."""
        return f"{self.served.version}.{self.change}"

    @property
    def facts(self) -> Scores:
        """What distances mean here."""
        return self.served.facts[self.generation.id]

    def search(self, rows: Rows, k: int, m: int | None = None, allowed: Ids | None = None) -> Neighbours:
        """The k nearest of each of (Q, dim) rows; see `Index.search`. Raises Busy, WrongShape, NotFinite."""
        if allowed is not None:
            with self.slots.alone():
                return self.held.search(rows, k, m, allowed)
        return self.slots.together((self.held, k, m), rows, lambda parts: _searched(self.held, parts, k, m))

    def embed(self, crops: Mapping[CropKind, Crops]) -> Rows:
        """Where these (N, ...) crops lie. Raises Busy, WrongShape, NotFinite."""
        key = (self.generation.id, self.task)
        return self.slots.together(key, crops, lambda parts: _embedded(self.generation, self.task, parts))


def _searched(held: Held, parts: list[Rows], k: int, m: int | None) -> list[Neighbours]:
    found = held.search(parts[0] if len(parts) == 1 else np.concatenate(parts), k, m)
    if len(parts) == 1:
        return [found]
    ends = np.cumsum([len(p) for p in parts])[:-1]
    split = (np.split(a, ends) for a in (found.ids, found.distances, found.fraction))
    return [Neighbours(i, d, f, found.m) for i, d, f in zip(*split, strict=True)]


def _embedded(generation: Model, task: str, parts: list[Mapping[CropKind, Crops]]) -> list[Rows]:
    if len(parts) == 1:
        return [generation.embed(generation.describe(parts[0]), task)]
    kinds = generation.recipe.crops
    rows = generation.describe({kind: np.concatenate([p[kind] for p in parts]) for kind in kinds})
    ends = np.cumsum([len(p[kinds[0]]) for p in parts])[:-1]
    return np.split(generation.embed(rows, task), ends)


class Registry:
    """The deployments by (collection, task). Written by the follower, read by everybody without a lock."""

    def __init__(self) -> None:
        self._served: dict[Key, Served] = {}
        self._moved = threading.Condition()

    def get(self, key: Key) -> Served | None:
        return self._served.get(key)

    def all(self) -> tuple[Served, ...]:
        return tuple(self._served.values())

    def put(self, served: Served) -> None:
        self._replace({**self._served, (served.collection, served.task): served})

    def drop(self, key: Key) -> None:
        self._replace({k: v for k, v in self._served.items() if k != key})

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in that time; looked at whenever something is served that was not."""
        with self._moved:
            return self._moved.wait_for(until, seconds)

    def _replace(self, served: dict[Key, Served]) -> None:
        with self._moved:
            self._served = served
            self._moved.notify_all()


class Wishes:
    """Which models, beside champions, somebody asked for lately: the follower loads those and drops others."""

    def __init__(self, kept_seconds: float = 600.0) -> None:
        self._kept = kept_seconds
        self._asked: dict[tuple[Key, str], float] = {}

    def ask(self, key: Key, generation: str) -> None:
        self._asked[key, generation] = time.monotonic()

    def lately(self, key: Key, generation: str) -> bool:
        return time.monotonic() - self._asked.get((key, generation), -self._kept) < self._kept
