"""The context of a run (photos, result store, scope), and the computations that many tables share."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cli.datasets.export import build_training_set
from ml import registry
from ml.distances import Distance
from ml.embedders.base import Embedder, Progress, TrainingSet
from ml.evaluation import protocols
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import Ranked
from ml.types import Rows
from papers.harness.feature_view import FeatureView, view_features
from papers.harness.photos import MIRRORED_SUFFIX, Photos
from papers.harness.result_store import ResultStore
from papers.harness.table_types import Computation, ComputationOutput, Result, Scope

FOLDS = range(10)
DESCRIPTOR_WIDTHS = {"lbp": 9860, "fisher": 16896, "sift": 3456, "fplbp": 500, "cslbp": 2720, "mobilefacenet": 128}
MAX_STORED_WIDTH = 1024
"""Embeddings with more numbers are not stored; only their rankings are."""
MIN_PHOTOS_TO_QUERY = 4
"""People need this many photos to be searched for on the splits on which options are chosen."""
Train = Callable[[Protocol], TrainingSet]


@dataclass(frozen=True)
class Method:
    """An embedder with its options. dim: numbers of an embedding; 0: the method has no such option"""

    name: str
    dim: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, seed: int = 0) -> Embedder:
        size = {"dim": self.dim} if self.dim else {}
        built: Embedder = registry.build("embedders", self.name, seed=seed, **size, **self.options)
        return built

    @property
    def key(self) -> dict[str, Any]:
        return {"method": self.name, "dim": self.dim, "options": dict(self.options)}


@dataclass(frozen=True, eq=False)
class RunContext:
    """The context of a run.

    photos: source of all features; store: stored results; scope: number of draws, and whether the run is quick
    """

    photos: Photos
    store: ResultStore
    scope: Scope

    def result(self, computation: Computation) -> Result:
        return self.store.get(computation)

    def results(self, computations: Sequence[Computation]) -> list[Result]:
        return [self.store.get(computation) for computation in computations]

    def protocol(self, name: str) -> Protocol:
        """Return a protocol of LFW: `queries-0`, `disjoint-0`, `view2:0`, ...

        Names with `inner-` are splits of a protocol's training side, on which options are chosen. In `inner-0` and
        `inner-disjoint-0`, people are held out; in `inner-queries-0`, one photo of each person with four or more.
        """
        return _protocol(self.photos, name)

    def retrieval(
        self,
        method: Method,
        features: str,
        protocol: str,
        *,
        train: Train | None = None,
        about: Mapping[str, Any] | None = None,
        task: str = "identity",
        seconds: float | None = None,
        keep: bool = False,
    ) -> Computation:
        """Fit on the training side of a protocol, and rank its gallery, without and with all distractors.

        train: makes the training set of a protocol, and `about` describes it in the key; default: the identities of the
            training side; keep: whether to save the fitted embedder in the result's folder
        Arrays: see `ranked_arrays`; with up to MAX_STORED_WIDTH numbers also the embeddings, `lfw` (N, d) and
        `distractors` (M, d); for mixtures of maps also p(s | x), `lfw_shares` (N, k) and `distractors_shares`.
        """
        key = {**method.key, "features": features, "protocol": protocol, "task": task, "keep": keep, **(about or {})}

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            split = self.protocol(protocol)
            whole = FeatureView(self.photos, features) if train or keep else None
            embedder, view, record = self._fitted(method, features, split, train, progress, whole)
            if keep:
                embedder.save(folder / "embedder")
            sets = [name for name in ("lfw", "distractors") if self.photos.has(name)]
            embedded = {name: embedder.embed(view.rows(name), task) for name in sets}
            shares = {f"{name}_shares": _shares(embedder, view.rows(name)) for name in sets if _mixes(embedder)}
            return record, _collect_arrays(split, embedded, embedder.metric) | shares

        guess = estimate_seconds(method, features) if seconds is None else seconds
        return Computation(f"{method.name} {method.dim or ''} {features} {protocol}", key, guess, run)

    def verification(
        self,
        method: Method,
        features: str,
        *,
        seconds: float | None = None,
        train: Train | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> list[Computation]:
        """Return ten computations, one for each fold of LFW's view 2.

        Arrays: `distances` (6000,) of all pairs under the fold's own model, and `told`, the distances as
        tables show them.
        The record holds `parameters`, the number of learned parameters.
        """
        return [self._fold(method, features, (fold,), seconds, train, about or {}) for fold in FOLDS]

    def judges(self, method: Method, features: str) -> list[Computation]:
        """Return five computations like those of `verification`, for choosing thresholds of learned methods.

        The first is a fit that saw neither fold 0 nor fold 1, the second neither 2 nor 3, and so on.
        """
        return [self._fold(method, features, (fold, fold + 1), None, None, {}) for fold in FOLDS[::2]]

    def _fold(
        self, method: Method, features: str, unseen: tuple[int, ...], seconds: float | None, train: Train | None,
        about: Mapping[str, Any],
    ) -> Computation:  # fmt: skip
        folds_text = " and ".join(str(fold) for fold in unseen)
        fold = unseen[0] if len(unseen) == 1 else [*unseen]
        key = {**method.key, "features": features, "protocol": "view2", "fold": fold, **about}

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            first, *others = (self.protocol(f"view2:{fold}") for fold in unseen)
            split = reduce(lambda kept, other: kept.narrowed(other.training), others, first)
            whole = FeatureView(self.photos, features) if train else None
            embedder, view, record = self._fitted(method, features, split, train, progress, whole)
            rows, pairs = view.rows("lfw"), self.pairs()
            named, positions = np.unique(pairs, return_inverse=True)
            embedded = embedder.embed(rows[named])
            distances = embedder.metric.pair_distances(embedded, positions.reshape(pairs.shape))
            record["parameters"] = view.numbers(embedder.learned)
            return record, {"distances": distances, "told": embedder.metric.display_distance(distances)}

        guess = estimate_seconds(method, features) if seconds is None else seconds
        return Computation(f"{method.name} {method.dim or ''} {features} fold {folds_text}", key, guess, run)

    def pairs(self) -> NDArray[np.int64]:
        """Return the (6000, 2) photo indexes of LFW's pairs, fold after fold."""
        return np.concatenate([self.protocol(f"view2:{fold}").pairs.index for fold in FOLDS])

    def _fitted(
        self, method: Method, features: str, split: Protocol, train: Train | None, progress: Progress,
        whole: FeatureView | None,
    ) -> tuple[Embedder, FeatureView, dict[str, Any]]:  # fmt: skip
        embedder = method.build()
        view = whole or view_features(self.photos, features, split.training, embedder)
        if view.axes is not None and "axes" in embedder.options():
            embedder = embedder.with_options(axes=0)  # the rows already are these coordinates
        made = train(split) if train else self.identities(features, split, view)
        started = time.monotonic()
        embedder.fit(made, progress=progress)
        took = time.monotonic() - started
        return embedder, view, {"fit_seconds": took, "notes": dict(embedder.notes), "faces": len(made.rows)}

    def identities(self, features: str, split: Protocol, view: FeatureView | None = None) -> TrainingSet:
        """Return the training set of a protocol of LFW, with its descriptors or a view of them."""
        names, view = self.photos.names("lfw"), view or FeatureView(self.photos, features)
        made = build_training_set(view.rows("lfw")[split.training], [names[i] for i in split.training])
        return TrainingSet(made.rows, made.tasks, view.blocks)


@lru_cache(maxsize=64)
def _protocol(photos: Photos, name: str) -> Protocol:
    names = photos.names("lfw")
    if not name.startswith("inner-"):
        return protocols.read(name, photos.lfw.protocol, names)
    outer_name = name.removeprefix("inner-")
    outer = protocols.read(outer_name if "-" in outer_name else f"queries-{outer_name}", photos.lfw.protocol, names)
    split = _hold_out_photos if outer_name.startswith("queries") else _hold_out_people
    return replace(split(outer), name=name)


def _hold_out_people(outer: Protocol) -> Protocol:
    """Hold out a fifth of the people who have four photos or more."""
    people = np.where(outer.training_mask, outer.people, -1)
    inner = protocols.held_out_people(people, 0.2, photos=MIN_PHOTOS_TO_QUERY)
    return replace(inner, training=np.intersect1d(inner.training, outer.training))


def _hold_out_photos(outer: Protocol) -> Protocol:
    """Make one photo of each person with four or more a query; all others are gallery and training side."""
    people, counts = np.unique(outer.people[outer.training], return_counts=True)
    draw = np.random.default_rng(0)
    faces_of_person = [outer.training[outer.people[outer.training] == p] for p in people[counts >= MIN_PHOTOS_TO_QUERY]]
    queries = np.sort([draw.choice(faces) for faces in faces_of_person])
    rest = np.setdiff1d(outer.training, queries)
    return replace(outer, training=rest, queries=queries, gallery=rest)


def estimate_seconds(method: Method, features: str) -> float:
    """Estimate the seconds of a fit, roughly (machine: docs/research/measurements.md). Measured times replace it."""
    width = (
        sum(DESCRIPTOR_WIDTHS.get(one.removesuffix(MIRRORED_SUFFIX), 2000) for one in features.split("+"))
        / DESCRIPTOR_WIDTHS["lbp"]
    )
    plain = {"l2": 0.0, "cosine": 0.0, "wpca": 10.0 * width, "ldml": 8.0, "clml": 18.0}
    maps = 0.8 + float(method.options.get("k", 16)) / 80 if method.name == "clml" else 1.0
    return 3.0 + 2.0 * width + plain.get(method.name, 60.0 * width) * maps * (0.7 + 0.3 * max(method.dim, 32) / 32)


def _collect_arrays(split: Protocol, embedded: Mapping[str, Rows], metric: Distance) -> dict[str, NDArray[Any]]:
    lfw, others = embedded["lfw"], embedded.get("distractors")
    arrays = ranked_arrays(rank_protocol(lfw, split, metric=metric), "alone")
    if others is not None:
        arrays |= ranked_arrays(rank_protocol(lfw, split, metric=metric, distractors=others), "crowd")
    return arrays | (dict(embedded) if lfw.shape[1] <= MAX_STORED_WIDTH else {})


def _mixes(embedder: Embedder) -> bool:
    return hasattr(embedder, "assignments")


def _shares(embedder: Any, rows: Rows) -> Rows:
    """Return p(s | x) without the threshold on small shares, so that distant components can still be ordered."""
    whole = embedder.with_options(threshold=0.0)
    whole.learned = embedder.learned
    shares: Rows = whole.assignments(rows)
    return shares


def ranked_arrays(ranked: Ranked, name: str) -> dict[str, NDArray[Any]]:
    """Return a ranking as arrays.

    `<name>_ranks`: the ranks of the relevant faces, query after query; `<name>_counts`: (Q,) their number per query;
    `<name>_people`: (Q,) person of each query
    """
    empty = np.empty(0, np.int64)
    return {
        f"{name}_ranks": np.concatenate([*ranked.ranks, empty]).astype(np.int32),
        f"{name}_counts": np.array([len(r) for r in ranked.ranks], np.int32),
        f"{name}_people": ranked.groups,
    }
