"""An evaluation over the folds of a list of pairs: is it the same person?"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ml.distances import Distance
from ml.evaluation.folds import Judge, PairDistances, threshold_fold, verify
from ml.evaluation.protocols import Protocol
from ml.evaluation.verification import Distances
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids
from workers.evaluating.embeddings import GalleryEmbeddings

MIN_FOLDS_FOR_PAIRING = 4
"""Folds of which two may be left out."""
FitProtocol = Callable[[Protocol, int, int], GalleryEmbeddings]
"""Where all lie under a fit on a protocol's training side, which is the so-manieth of so many."""


class FoldFits:
    """A model fitted for each fold, and, from four folds on, for each two that give each other their thresholds."""

    def __init__(self, protocols: Sequence[Protocol], fitted: FitProtocol) -> None:
        self.protocols, self.fitted, self.done = protocols, fitted, 0
        count = len(protocols)
        self.twos = (
            {frozenset((f, threshold_fold(f, count))) for f in range(count)}
            if count >= MIN_FOLDS_FOR_PAIRING
            else set()
        )
        self.told: dict[tuple[int, int], Distances] = {}

    @property
    def judge(self) -> Judge | None:
        return self._threshold_of if self.twos else None

    def embed_fold(self, fold: int) -> GalleryEmbeddings:
        return self._fit(self.protocols[fold])

    def _threshold_of(self, fold: int) -> tuple[VerificationPairs, Distances]:
        other = threshold_fold(fold, len(self.protocols))
        if (fold, other) not in self.told:
            embeddings = self._fit(self.protocols[fold].narrowed(self.protocols[other].training))
            for a, b in ((fold, other), (other, fold)):
                self.told[a, b] = embeddings.metric.pair_distances(embeddings.rows, self.protocols[b].pairs.index)
        return self.protocols[other].pairs, self.told[fold, other]

    def _fit(self, protocol: Protocol) -> GalleryEmbeddings:
        self.done += 1
        return self.fitted(protocol, self.done - 1, len(self.protocols) + len(self.twos))


def measure_verification(
    faces: Ids,
    people: Ids,
    protocols: Sequence[Protocol],
    embed_fold: Callable[[int], GalleryEmbeddings],
    judge: Judge | None,
) -> dict[str, Any]:
    """The report: see `docs/use/publishing.md`. `placed(f)` is asked for one fold after the other, and none is held.

    faces, people: (N,) the pk of each photo's face, and whose it is. judge: see `ml.evaluation.folds.verify`.
    """
    seconds: list[dict[str, float]] = []
    metric: list[Distance] = []

    def make_distances(fold: int) -> PairDistances:
        start, embeddings = time.perf_counter(), embed_fold(fold)
        metric.append(embeddings.metric)
        seconds.append(embeddings.seconds | {"place_seconds": time.perf_counter() - start})
        return lambda pairs: embeddings.metric.pair_distances(embeddings.rows, pairs)

    verification = verify(
        [p.pairs for p in protocols],
        people,
        make_distances,
        judge=judge,
        displayed=lambda d: metric[0].display_distance(d),
    )
    apart_by = verification.separation
    folds = zip(protocols, verification.accuracies, verification.thresholds, seconds, strict=True)
    timed = {k: float(np.mean([s[k] for s in seconds])) for k in seconds[0]}
    return {
        "mean": {"accuracy": verification.accuracy.mean, "auc": apart_by.auc.value, "eer": apart_by.eer.value} | timed,
        "sd": {"accuracy": verification.accuracy.sd},
        "se": {"accuracy": verification.accuracy.se},
        "draws": [_draw(*fold, faces) for fold in folds],
        "pairs": verification.pairs,
        "accuracy": asdict(verification.people),
        "accuracy_over_folds": asdict(verification.student),
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
