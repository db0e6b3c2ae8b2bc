"""What a distance means in a deployment: similarity, probability, false-match rate, passed or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration, Threshold
from ml.generation import Generation
from ml.indexes import Point
from ml.metric import Metric

Floats = NDArray[np.float64]
Distances = NDArray[np.float32] | NDArray[np.float64]
DEFAULT_FMR = 0.001
FARTHEST = 1e30


@dataclass(frozen=True)
class Scores:
    """The facts of a deployment, ready to be used.

    calibration: of this gallery (`app.engine.facts.measure`), else that of training time, else None: similarities are
    then only an order, and nothing passes or fails
    measured_on: faces there were when the facts were measured; 0 where they were not
    curve: what m buys, by rising m; empty where it was not measured
    """

    metric: Metric
    calibration: Calibration | None = None
    default_fmr: float = DEFAULT_FMR
    measured_on: int = 0
    curve: tuple[Point, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None, generation: Generation, task: str) -> Self:
        """From what `app.engine.facts.measure` wrote; None where nothing was measured here."""
        facts = facts or {}
        own = facts.get("calibration")
        return cls(
            metric=generation.metric,
            calibration=Calibration.from_dict(own) if own else generation.calibrations.get(task),
            default_fmr=facts.get("default_fmr", DEFAULT_FMR),
            measured_on=facts.get("faces", 0),
            curve=tuple(Point(**p) for p in facts.get("curve", ())),
        )

    def similarity(self, distances: Distances) -> Floats:
        """0..100, falling with the distance: 100 x the probability at prior 0.5 where that is known."""
        if self.calibration is not None:
            return 100 * self.calibration.probability(distances.astype(np.float64))
        far = distances.astype(np.float64)
        return 100 / (1 + far) if self.metric.kind == "l2" else 50 * (1 - far / (1 + np.abs(far)))

    def distance(self, similarity: float) -> float:
        """Where that similarity lies; kept finite."""
        if self.calibration is not None:
            far = self.calibration.distance(similarity)
        elif self.metric.kind == "l2":
            far = 100 / max(similarity, 1e-9) - 1
        else:
            side = 1 - similarity / 50  # far / (1 + |far|)
            far = side / max(1 - abs(side), 1e-9)
        return float(np.clip(far, -FARTHEST, FARTHEST))

    def probability(self, distances: Distances) -> Floats | None:
        return None if self.calibration is None else self.calibration.probability(distances.astype(np.float64))

    def fmr(self, distances: Distances) -> Floats | None:
        """Which share of this gallery's impostors come so near."""
        return None if self.calibration is None else self.calibration.fmr_estimate(distances.astype(np.float64))

    def threshold(self, fmr: float | None = None) -> Threshold | None:
        """The distance up to which a match passes at this false-match rate, or at the default one."""
        if fmr is None or self.calibration is None:
            return self._default
        return self.calibration.threshold(fmr)

    @cached_property
    def _default(self) -> Threshold | None:
        return None if self.calibration is None else self.calibration.threshold(self.default_fmr)
