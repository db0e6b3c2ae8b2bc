"""Small fits of every embedder, with the options, data and starts that take different paths through the code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.registry import build, list_options
from tests.ml.synthetic_people import labels_alone, people, two_tasks

NEW = people(12, 4, seed=9).rows
"""Faces that no fit has seen; their embeddings are compared."""
SMALL = {"dim": 6, "steps": 40, "first": 30, "k": 3, "pairs": 1500, "auxiliary_pairs": 1000, "local": 15, "depth": 3}
SMALL |= {"bases": 40, "regions": 4, "inner": 12, "batch": 48, "groups": 30, "others": 40}


def labelled(weighted: bool = True) -> TrainingSet:
    """People whose values are known in half, with explicit labels of different weights beside them."""
    data, rng = people(), np.random.default_rng(3)
    [task] = data.tasks
    pairs = rng.integers(0, len(task.faces), (120, 2))
    pairs = np.concatenate([pairs[pairs[:, 0] != pairs[:, 1]], [[5 * i, 5 * i + 2] for i in range(60)]])
    same = task.people[pairs[:, 0]] == task.people[pairs[:, 1]]
    weights = rng.choice([0.5, 1.0, 2.0], len(pairs)).astype(np.float32) if weighted else np.ones(len(pairs))
    values = np.where(task.people % 2 == 0, task.values, np.nan)
    known = replace(task, values=values, pairs=pairs, same=same, weights=weights.astype(np.float32))
    return replace(data, tasks=(known,))


def ages() -> TrainingSet:
    """A task of numbers that are the same within a tolerance, and people who are partly unknown."""
    data, rng = people(), np.random.default_rng(4)
    years = np.round(30 + 8 * data.rows[:, 0].astype(np.float64))
    person = np.where(rng.random(len(years)) < 0.2, -1, data.tasks[0].people)
    return replace(data, tasks=(TaskData("age", np.arange(len(years)), years, person, tolerance=2.0),))


def weighted_labels_alone() -> TrainingSet:
    data = labels_alone(people())
    [task] = data.tasks
    weights = np.random.default_rng(5).choice([0.5, 1.0], len(task.pairs)).astype(np.float32)
    return replace(data, tasks=(replace(task, weights=weights),))


def two_tasks_of_new() -> TrainingSet:
    """Two tasks on rows as wide as NEW."""
    data = two_tasks()
    return replace(data, rows=np.ascontiguousarray(data.rows[:, :30]))


def other_people() -> TrainingSet:
    return people(40, 4, seed=7)


DATA: dict[str, Callable[[], TrainingSet]] = {
    "people": people,
    "blocks": lambda: replace(people(), blocks=(10, 20)),
    "labelled": labelled,
    "labels alone": weighted_labels_alone,
    "ages": ages,
    "two tasks": two_tasks_of_new,
    "two tasks turned": lambda: replace(two_tasks_of_new(), tasks=two_tasks_of_new().tasks[::-1]),
    "others": other_people,
    "few": lambda: people(10, 3, seed=5),
}


@dataclass(frozen=True)
class Case:
    """start: the key of the case whose fitted embedder this one starts from."""

    method: str
    data: str = "people"
    options: dict[str, Any] = field(default_factory=dict)
    start: "Case | None" = None

    @property
    def key(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.method}|{self.data}|{options}" + (f"|from {self.start.key}" if self.start else "")


def build_small(method: str, options: dict[str, Any]) -> Embedder:
    known = {name for o in list_options("embedders", method) for name in (o.name, o.formerly)}
    made: Embedder = build("embedders", method, **{k: v for k, v in SMALL.items() if k in known} | options)
    return made


@cache
def training_set(name: str) -> TrainingSet:
    return DATA[name]()


def fit(case: Case, progress: Callable[[int, int, dict[str, float]], None] | None = None) -> Embedder:
    embedder = build_small(case.method, case.options)
    if case.start is not None:
        embedder.start_from(_fitted(case.start.key))
    data = training_set(case.data)
    return embedder.fit(data) if progress is None else embedder.fit(data, progress=progress)


@cache
def _fitted(key: str) -> Embedder:
    return fit(next(case.start for case in list_cases() if case.start and case.start.key == key))


def list_cases() -> Iterator[Case]:
    yield from (Case(m, d) for m in ("l2", "cosine") for d in ("people",))
    yield from _wpca()
    yield from _logistic()
    yield from _hinge()
    yield from _layers()
    yield from _similarities()
    yield from _sparse()


def _each(method: str, *options: dict[str, Any], data: str = "people") -> Iterator[Case]:
    for some in options:
        yield Case(method, data, some)


def _on_every_data(method: str) -> Iterator[Case]:
    for name in ("people", "blocks", "labelled", "labels alone", "ages", "two tasks"):
        yield Case(method, name)
        if name != "blocks":
            yield Case(method, name, {"held_out": 0.25})


def _wpca() -> Iterator[Case]:
    yield from _each("wpca", {}, {"whiten": False}, {"unit": True}, {"floor": 0.1}, {"sample": 100})
    yield Case("wpca", "blocks")


def _logistic() -> Iterator[Case]:
    for method in ("ldml", "clml", "flat", "hierarchical"):
        yield from _on_every_data(method)
        yield from _each(method, {"unit": False}, {"spherical": 0.7}, {"start": "wpca"}, {"axes": 12}, {"axes": 0})
        for start in (Case("wpca"), Case("ldml"), Case(method)):
            yield Case(method, "others", {"dim": 4}, start)
            yield Case(method, "few", {"held_out": 0.2, "stay": 0.03}, start)
        yield Case(method, "blocks", {}, Case("wpca", "blocks"))
    yield from _each("ldml", {"start": "pca"}, {"start": "random"}, {"balanced": False}, {"averaging": 0.0})
    yield from _each("ldml", {"shrink": 1e-3}, {"negatives": 2.0, "corrections": 0.5}, data="labelled")
    yield from _each("clml", {"gate": "descriptor"}, {"soften": 3.0, "threshold": 0.0}, {"threshold": 0.05})
    yield from _each("clml", {"rescale": False, "anchor": 0.1}, {"pull": 1e-3, "local_rate": 0.02}, {"k": 1})
    yield from _each("clml", {"ks": (2, 3), "first": 10}, {"ks": (2, 4), "held_out": 0.25})
    yield Case("clml", "others", {"ks": (2, 3)}, Case("clml"))
    for method, one in (("flat", {"k": 1}), ("hierarchical", {"depth": 1})):
        yield from _each(method, one, {"wall": 4.0}, {"wall": 1.0, "unit": False}, {"needed": 400})
    yield Case("flat", "others", {}, Case("hierarchical"))


def _hinge() -> Iterator[Case]:
    for method in ("stml", "pcca", "utml", "cpmtml", "mtlmca"):
        for name in ("people", "labelled", "labels alone", "ages", "two tasks", "two tasks turned"):
            yield Case(method, name)
        yield from _each(method, {"refit": False}, {"held_out": 0.0}, {"whiten": False}, {"averaging": 0.0})
        yield from _each(method, {"rate": 5.0}, {"rate": 30.0}, {"apart": 0.2}, data="two tasks")
        yield Case(method, "others", {"dim": 4}, Case(method))
        yield Case(method, "few", {"stay": 10.0}, Case(method))
        yield Case(method, "few", {"held_out": 0.0, "stay": 0.0}, Case(method))
    for method in ("utml", "cpmtml", "mtlmca"):
        yield Case(method, "two tasks turned", {}, Case(method, "two tasks"))
        yield Case(method, "two tasks", {"held_out": 0.0})
    yield from _each("pcca", {"beta": 9.0}, {"bias_rate": 0.01, "distance": 2.0})
    yield from _each("cpmtml", {"common": "first"}, {"coupling": 0.0}, {"coupling": 1.0}, data="two tasks")
    yield from _each("mtlmca", {"start": "eye"}, {"turning": 0.0}, {"turning": 0.3}, data="two tasks")


def _layers() -> Iterator[Case]:
    for method in ("qconv", "stiefel"):
        for name in ("people", "blocks", "labelled", "labels alone", "ages", "two tasks"):
            yield Case(method, name)
        yield from _each(
            method, *({"start": s, "held_out": 0.0} for s in ("pca", "lda", "wpca", "random")), {"axes": 12}
        )
        yield from _each(method, {"length": "kept"}, {"length": "unit"}, {"refit": False}, {"held_out": 0.0})
        for some in ({"stay": 0.0}, {"stay": 30.0, "margin": 1.0}, {"per_anchor": 2}):
            yield Case(method, "labelled", some | {"held_out": 0.0})
        yield Case(method, "labels alone", {"held_out": 0.0, "length": "kept"})
        for start in (Case("qconv"), Case("stiefel", "people", {"length": "unit"})):
            yield Case(method, "others", {"dim": 4}, start)
            yield Case(method, "few", {"steps": 15}, start)
    yield from _each("qconv", *({"gradient": g, "held_out": 0.0} for g in ("metric", "inverse")))
    yield from _each("stiefel", *({"held_out": 0.0} | o for o in ({"retraction": "cayley"}, {"scale_rate": 0.01})))


def _similarities() -> Iterator[Case]:
    for method in ("sml", "cosim_mass", "cosim_average"):
        for name in ("people", "blocks", "labelled", "labels alone", "ages", "two tasks"):
            yield Case(method, name)
        yield from _each(method, {"whitening": "all"}, {"whitening": "none"}, {"unit": False}, {"reach": 0.0})
        yield from _each(method, {"dropout": 0.0}, {"held_out": 0.0}, {"decay": 0.1, "rate": 0.003}, data="blocks")
        yield Case(method, "few", {"inner": 4, "unit": False}, Case(method))
        yield Case(method, "blocks", {"stay": 10.0, "held_out": 0.0}, Case(method, "blocks"))
    searched = {"shares": "search", "parts": 2, "steps": 20}
    yield Case("cosim_average", "blocks", searched)
    yield Case("cosim_average", "blocks", {"steps": 10}, Case("cosim_average", "blocks", searched))
    yield Case("cosim_average", "people", searched)


def _sparse() -> Iterator[Case]:
    for method in ("scml",):
        yield from _on_every_data(method)
    yield from _each("scml", {"k": 1}, {"unit": False}, {"dim": 3}, {"sparsity": 1e-3}, {"local_sparsity": 0.01})
    for name in ("people", "blocks", "labelled", "labels alone", "ages", "two tasks"):
        yield Case("subsml", name)
    yield from _each("subsml", {"whitening": "all"}, {"whitening": "none"}, {"pull": 0.1, "apart": 0.3})
