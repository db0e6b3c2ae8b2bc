"""An evaluation over the folds of a list of pairs: is it the same person?"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ml.distances import Distance
from ml.evaluation.folds import Apart, Judge, partner, verify
from ml.evaluation.protocols import Protocol
from ml.evaluation.verification import Distances
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids
from workers.evaluating.embeddings import Placed

ENOUGH = 4
"""Folds of which two may be left out."""
Fitted = Callable[[Protocol, int, int], Placed]
"""Where all lie under a fit on a protocol's training side, which is the so-manieth of so many."""


class Learned:
    """A model fitted for each fold, and, from four folds on, for each two that give each other their thresholds."""

    def __init__(self, protocols: Sequence[Protocol], fitted: Fitted) -> None:
        self.protocols, self.fitted, self.done = protocols, fitted, 0
        count = len(protocols)
        self.twos = {frozenset((f, partner(f, count))) for f in range(count)} if count >= ENOUGH else set()
        self.told: dict[tuple[int, int], Distances] = {}

    @property
    def judge(self) -> Judge | None:
        return self._threshold_of if self.twos else None

    def placed(self, fold: int) -> Placed:
        return self._fit(self.protocols[fold])

    def _threshold_of(self, fold: int) -> tuple[VerificationPairs, Distances]:
        other = partner(fold, len(self.protocols))
        if (fold, other) not in self.told:
            here = self._fit(self.protocols[fold].narrowed(self.protocols[other].training))
            for a, b in ((fold, other), (other, fold)):
                self.told[a, b] = here.metric.pair_distances(here.rows, self.protocols[b].pairs.index)
        return self.protocols[other].pairs, self.told[fold, other]

    def _fit(self, protocol: Protocol) -> Placed:
        self.done += 1
        return self.fitted(protocol, self.done - 1, len(self.protocols) + len(self.twos))


def judged(
    faces: Ids, people: Ids, protocols: Sequence[Protocol], placed: Callable[[int], Placed], judge: Judge | None
) -> dict[str, Any]:
    """The report: see `docs/use/publishing.md`. `placed(f)` is asked for one fold after the other, and none is held.

    faces, people: (N,) the pk of each photo's face, and whose it is. judge: see `ml.evaluation.folds.verify`.
    """
    seconds: list[dict[str, float]] = []
    metric: list[Distance] = []

    def apart(fold: int) -> Apart:
        start, here = time.perf_counter(), placed(fold)
        metric.append(here.metric)
        seconds.append(here.seconds | {"place_seconds": time.perf_counter() - start})
        return lambda pairs: here.metric.pair_distances(here.rows, pairs)

    found = verify(
        [p.pairs for p in protocols], people, apart, judge=judge, told=lambda d: metric[0].display_distance(d)
    )
    apart_by = found.separation
    folds = zip(protocols, found.accuracies, found.thresholds, seconds, strict=True)
    timed = {k: float(np.mean([s[k] for s in seconds])) for k in seconds[0]}
    return {
        "mean": {"accuracy": found.accuracy.mean, "auc": apart_by.auc.value, "eer": apart_by.eer.value} | timed,
        "sd": {"accuracy": found.accuracy.sd},
        "se": {"accuracy": found.accuracy.se},
        "draws": [_draw(*each, faces) for each in folds],
        "pairs": found.pairs,
        "accuracy": asdict(found.people),
        "accuracy_over_folds": asdict(found.student),
        **asdict(apart_by),
    }


def _draw(protocol: Protocol, accuracy: float, threshold: float, took: dict[str, float], faces: Ids) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "pairs": len(protocol.pairs.same),
        "fingerprint": _fingerprint(protocol, faces),
        "missing": len(protocol.missing),
        "accuracy": accuracy,
        "threshold": threshold,
        **took,
    }


def _fingerprint(protocol: Protocol, faces: Ids) -> str:
    """By which another evaluation of the same pairs is known."""
    pairs = np.column_stack([faces[protocol.pairs.index], protocol.pairs.same])
    return hashlib.sha256(np.ascontiguousarray(pairs, "<i8").tobytes()).hexdigest()[:16]
