"""Measure verification over the folds of a list of pairs: do two photos show the same person?"""

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
from ml.files import hash_bytes
from ml.types import Ids
from workers.evaluating.embeddings import GalleryEmbeddings

MIN_FOLDS_FOR_PAIRING = 4
"""Folds needed so that two may be left out of a fit."""
FitProtocol = Callable[[Protocol, int, int], GalleryEmbeddings]
"""fit(protocol, number, count) fits on the protocol's training side and embeds all photos: fit `number` of `count`."""


class FoldFits:
    """Fit a model for each fold; from four folds on, also for each two that give each other their thresholds."""

    def __init__(self, protocols: Sequence[Protocol], fit: FitProtocol) -> None:
        self.protocols, self.fit, self.fit_count = protocols, fit, 0
        count = len(protocols)
        self.fold_pairs = (
            {frozenset((f, threshold_fold(f, count))) for f in range(count)}
            if count >= MIN_FOLDS_FOR_PAIRING
            else set()
        )
        self.distances: dict[tuple[int, int], Distances] = {}

    @property
    def judge(self) -> Judge | None:
        return self._threshold_of if self.fold_pairs else None

    def embed_fold(self, fold: int) -> GalleryEmbeddings:
        return self._fit(self.protocols[fold])

    def _threshold_of(self, fold: int) -> tuple[VerificationPairs, Distances]:
        other = threshold_fold(fold, len(self.protocols))
        if (fold, other) not in self.distances:
            embeddings = self._fit(self.protocols[fold].narrowed(self.protocols[other].training))
            for a, b in ((fold, other), (other, fold)):
                self.distances[a, b] = embeddings.metric.pair_distances(embeddings.rows, self.protocols[b].pairs.index)
        return self.protocols[other].pairs, self.distances[fold, other]

    def _fit(self, protocol: Protocol) -> GalleryEmbeddings:
        self.fit_count += 1
        return self.fit(protocol, self.fit_count - 1, len(self.protocols) + len(self.fold_pairs))


def measure_verification(
    faces: Ids,
    people: Ids,
    protocols: Sequence[Protocol],
    embed_fold: Callable[[int], GalleryEmbeddings],
    judge: Judge | None,
) -> dict[str, Any]:
    """Return the report: see `docs/use/publishing.md`. `embed_fold(f)` is called for one fold after another.

    faces, people: (N,) the pk of each photo's face, and its person; judge: see `ml.evaluation.folds.verify`
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
    separation = verification.separation
    folds = zip(protocols, verification.accuracies, verification.thresholds, seconds, strict=True)
    mean = {"accuracy": verification.accuracy.mean, "auc": separation.auc.value, "eer": separation.eer.value}
    mean |= {k: float(np.mean([s[k] for s in seconds])) for k in seconds[0]}
    return {
        "mean": mean,
        "sd": {"accuracy": verification.accuracy.sd},
        "se": {"accuracy": verification.accuracy.se},
        "draws": [_summarise_fold(*fold, faces) for fold in folds],
        "pairs": verification.pairs,
        "accuracy": asdict(verification.people),
        "accuracy_over_folds": asdict(verification.student),
        **asdict(separation),
    }


def _summarise_fold(
    protocol: Protocol, accuracy: float, threshold: float, seconds: dict[str, float], faces: Ids
) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "pairs": len(protocol.pairs.same),
        "fingerprint": _make_fingerprint(protocol, faces),
        "missing": len(protocol.missing),
        "accuracy": accuracy,
        "threshold": threshold,
        **seconds,
    }


def _make_fingerprint(protocol: Protocol, faces: Ids) -> str:
    """Return 16 hex digits that identify the pairs, so that another evaluation of the same pairs can be recognised."""
    pairs = np.column_stack([faces[protocol.pairs.index], protocol.pairs.same])
    return hash_bytes(np.ascontiguousarray(pairs, "<i8").tobytes())[:16]
