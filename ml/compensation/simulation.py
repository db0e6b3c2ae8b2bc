"""Simulate a source by degrading faces of the reference, so that it is known how the same photo would look there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.compensation.correction import Floats, Sources
from ml.compensation.degradations import DEGRADATIONS
from ml.types import Ids, Rows

Mask = NDArray[np.bool_]

TRIAL_FACES = 64
"""Faces that are degraded in every way, to choose the one that resembles a source."""
MIN_PAIRS, MAX_PAIRS = 300, 2000
MIN_EXPLAINED_SHARE = 0.4
"""A source is simulated if a degradation explains so much of the difference between its mean and the reference's."""

Describe = Callable[[str, Ids], Rows]
"""Takes a name of DEGRADATIONS and (n,) positions of rows; returns (n, d) embeddings of the degraded faces.

The row of a face that can no longer be degraded is NaN.
"""


@dataclass(frozen=True, eq=False)
class SimulatedFaces:
    """Degraded copies of faces of the reference.

    faces: (n,) positions of the faces among the rows; rows: (n, d) embeddings of the copies
    degradation: a name of DEGRADATIONS
    explained: the share of the squared difference between the means that the degradation explains, 1 at most
    """

    faces: Ids
    rows: Rows
    degradation: str
    explained: float

    def keep(self, is_kept: Mask) -> "SimulatedFaces":
        """Return the copies of the faces among some rows, with their positions there. is_kept: (N,) for each row"""
        chosen, positions = is_kept[self.faces], np.cumsum(is_kept) - 1
        return SimulatedFaces(positions[self.faces[chosen]], self.rows[chosen], self.degradation, self.explained)


def simulate_sources(rows: Rows, sources: Sources, reference: str, describe: Describe) -> dict[str, SimulatedFaces]:
    """Simulate every source that a degradation of reference faces resembles. Nobody needs to know who the faces show.

    rows: (N, d) embeddings; sources: (N,); describe: see `Describe`. The same faces are chosen each time.
    """
    order = np.random.default_rng(0).permutation(np.flatnonzero(sources == reference))
    others = [str(name) for name in np.unique(sources) if name != reference]
    if len(order) < MIN_PAIRS or not others:
        return {}
    trial, pairs = np.sort(order[:TRIAL_FACES]), np.sort(order[:MAX_PAIRS])
    changes = {name: _measure_change(rows[trial], describe(name, trial)) for name in DEGRADATIONS}
    reference_mean = rows[sources == reference].mean(0, dtype=np.float64)
    described: dict[str, Rows] = {}
    simulated: dict[str, SimulatedFaces] = {}
    for source in others:
        difference = rows[sources == source].mean(0, dtype=np.float64) - reference_mean
        name, explained = choose_degradation(difference, changes)
        if explained < MIN_EXPLAINED_SHARE:
            continue
        if name not in described:
            described[name] = describe(name, pairs)
        present = np.isfinite(described[name]).all(1)
        if present.sum() >= MIN_PAIRS:
            simulated[source] = SimulatedFaces(pairs[present], described[name][present], name, explained)
    return simulated


def _measure_change(good: Rows, degraded: Rows) -> Floats:
    """Return the (d,) mean change by a degradation, over the faces that could be degraded; zeros if none could."""
    present = np.isfinite(degraded).all(1)
    changes = (degraded[present] - good[present]).astype(np.float64)
    return changes.mean(0) if len(changes) else np.zeros(good.shape[1])


def choose_degradation(difference: Floats, changes: Mapping[str, Floats]) -> tuple[str, float]:
    """Return the degradation that changes a mean most alike, and the share of the difference that it explains.

    difference: (d,) mean of a source less that of the reference; changes: name -> (d,) mean change by a degradation
    """
    left = {name: float(((difference - change) ** 2).sum()) for name, change in changes.items()}
    name = min(left, key=lambda one: left[one])
    return name, 1 - left[name] / max(float((difference**2).sum()), np.finfo(np.float64).tiny)
