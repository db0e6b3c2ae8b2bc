"""An evaluation over the folds of a list of pairs: is it the same person?"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ml.evaluation.folds import Apart, verify
from ml.evaluation.protocols import Protocol
from ml.metric import Metric
from ml.types import Ids
from workers.placing import Placed


def judged(faces: Ids, people: Ids, protocols: Sequence[Protocol], placed: Callable[[int], Placed]) -> dict[str, Any]:
    """The report: see `docs/publishing.md`. `placed(f)` is asked for one fold after the other, and none is held.

    faces, people: (N,) the pk of each photo's face, and whose it is.
    """
    seconds: list[dict[str, float]] = []
    metric: list[Metric] = []

    def apart(fold: int) -> Apart:
        start, here = time.perf_counter(), placed(fold)
        metric.append(here.metric)
        seconds.append(here.seconds | {"place_seconds": time.perf_counter() - start})
        return lambda pairs: here.metric.apart(here.rows, pairs)

    found = verify([p.pairs for p in protocols], people, apart, told=lambda d: metric[0].told(d))
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
