"""The corrections that the benchmark of sources compares."""

import numpy as np

from benchmarks.degraded_pool import DegradedPool
from benchmarks.source_conditions import Conditions, Split
from ml.compensation import (
    NO_SOURCE,
    JudgedCompensation,
    SimulatedFaces,
    SourceCompensation,
    Sources,
    fit_compensation,
    judge_compensation,
    simulate_sources,
)
from ml.compensation.simulation import MAX_PAIRS
from ml.distances import EUCLIDEAN
from ml.types import Ids, Rows

SOURCE = "degraded"
LABELS = 500
MAX_JUDGED_FACES = 500
"""Degraded photos of named people that the service judges the correction on."""


def fit(
    conditions: Conditions, split: Split, faces: int | None = None, seed: int = 0, pool: DegradedPool | None = None
) -> SourceCompensation:
    """Learn the compensation from the split's clean photos and from some of its degraded ones, without labels.

    pool: degrades the clean photos that it has; the compensation is then learned from these clean photos alone
    """
    chosen = np.random.default_rng(seed).permutation(split.learned_degraded)[:faces]
    clean = split.learned_clean if pool is None else np.intersect1d(split.learned_clean, pool.photos)
    rows, sources, photos = join(conditions, clean, chosen)
    simulations = None if pool is None else simulate_sources(rows, sources, NO_SOURCE, pool.describe_rows(photos))
    return fit_compensation(rows, sources, NO_SOURCE, simulations)


def join(conditions: Conditions, clean: Ids, degraded: Ids) -> tuple[Rows, Sources, Ids]:
    """Return the rows, sources and photos of clean photos and of positions of degraded ones."""
    rows = np.concatenate([conditions.clean[clean], conditions.degraded[degraded]])
    sources = np.array([NO_SOURCE] * len(clean) + [SOURCE] * len(degraded))
    return rows, sources, np.concatenate([clean, conditions.photos[degraded]])


def fit_whitening(
    conditions: Conditions, split: Split, compensation: SourceCompensation, seed: int, shrinkage: float
) -> Rows:
    """Learn a (d, d) map from LABELS pairs: a degraded photo and another, clean photo of the same person."""
    rng = np.random.default_rng(seed)
    differences: list[Rows] = []
    for position in rng.permutation(split.learned_degraded):
        photo = conditions.photos[position]
        others = np.flatnonzero(conditions.people == conditions.people[photo])
        others = others[others != photo]
        corrected = compensation.apply(conditions.degraded[position : position + 1], np.array([SOURCE]))[0]
        differences.append(corrected - conditions.clean[rng.choice(others)])
        if len(differences) == LABELS:
            break
    within = np.cov(np.stack(differences).T, bias=True)
    dim = len(within)
    mixed = (1 - shrinkage) * within + shrinkage * np.trace(within) / dim * np.eye(dim)
    values, axes = np.linalg.eigh(mixed)
    return np.asarray((axes / np.sqrt(values)) @ axes.T, np.float32)


def fit_as(conditions: Conditions, split: Split, pool: DegradedPool, degradation: str) -> SourceCompensation:
    """Learn the compensation as `fit`, with a simulation that is chosen beforehand."""
    clean = np.intersect1d(split.learned_clean, pool.photos)
    rows, sources, _ = join(conditions, clean, split.learned_degraded)
    pairs = np.sort(np.random.default_rng(0).permutation(len(clean))[:MAX_PAIRS])
    simulated = SimulatedFaces(pairs, pool.describe(degradation, clean[pairs]), degradation, 1.0)
    return fit_compensation(rows, sources, NO_SOURCE, {SOURCE: simulated})


def judge(conditions: Conditions, split: Split, pool: DegradedPool) -> dict[str, JudgedCompensation]:
    """Return what the service would decide, with the people of the learning half named and with nobody named."""
    clean = np.intersect1d(split.learned_clean, pool.photos)
    degraded = np.random.default_rng(0).permutation(split.learned_degraded)
    degraded = degraded[~np.isin(conditions.photos[degraded], clean)][:MAX_JUDGED_FACES]
    rows, sources, photos = join(conditions, clean, degraded)
    simulations = simulate_sources(rows, sources, NO_SOURCE, pool.describe_rows(photos))
    people = {"people named": conditions.people[photos], "nobody named": np.full(len(rows), -1)}
    return {
        name: judge_compensation(rows, sources, numbers, EUCLIDEAN, simulations) for name, numbers in people.items()
    }
