"""What a distance means in a deployment: similarity, probability, false-match rate, passed or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.db.tables import DEFAULT_FPIR
from ml.calibration import Calibration, DistanceThreshold
from ml.distances import Distance
from ml.identification.decision_rule import DecisionRule
from ml.identification.open_set import OpenSetCalibration, PersonThreshold
from ml.indexes import OperatingPoint
from ml.model import Model

Floats = NDArray[np.float64]
Distances = NDArray[np.float32] | NDArray[np.float64]
DEFAULT_FMR = 0.001
FARTHEST = 1e30


@dataclass(frozen=True)
class Scores:
    """The facts of a deployment, ready to be used.

    calibration: of this gallery (`app.serving.gallery_calibration.measure`), else that of training time, else None:
    similarities are then only an order, and nothing passes or fails
    measured_on: faces there were when the facts were measured; 0 where they were not, or by an older version that did
        not keep how sure its false-match rates are
    curve: what m buys, by rising m; empty where it was not measured
    open_set: how strangers score against this gallery; without it only pairs are known
    reference: the model's own calibration, of other people, where it has one
    """

    metric: Distance
    calibration: Calibration | None = None
    default_fmr: float = DEFAULT_FMR
    measured_on: int = 0
    curve: tuple[OperatingPoint, ...] = ()
    default_fpir: float = DEFAULT_FPIR
    open_set: OpenSetCalibration | None = None
    reference: Calibration | None = None

    @classmethod
    def of(
        cls,
        facts: Mapping[str, Any] | None,
        generation: Model,
        task: str,
        default_fpir: float = DEFAULT_FPIR,
    ) -> Self:
        """From what `app.serving.gallery_calibration.measure` wrote; None where nothing was measured here."""
        facts = facts or {}
        own = Calibration.from_dict(facts["calibration"]) if facts.get("calibration") else None
        return cls(
            metric=generation.metric,
            calibration=own or generation.calibrations.get(task),
            default_fmr=facts.get("default_fmr", DEFAULT_FMR),
            measured_on=0 if own and not own.impostors.effective else facts.get("faces", 0),
            curve=tuple(OperatingPoint(**p) for p in facts.get("curve", ())),
            default_fpir=default_fpir,
            open_set=_open_set(facts.get("open_set")),
            reference=generation.calibrations.get(task),
        )

    def similarity(self, distances: Distances) -> Floats | None:
        """0..100, falling with the distance: 100 x the probability at prior 0.5. None where nothing is calibrated."""
        return None if self.calibration is None else 100 * self.calibration.probability(distances.astype(np.float64))

    def distance(self, similarity: float) -> float | None:
        """Where that similarity lies, kept finite. None where nothing is calibrated."""
        if self.calibration is None:
            return None
        return float(np.clip(self.calibration.distance(similarity), -FARTHEST, FARTHEST))

    @property
    def rule(self) -> DecisionRule:
        """How a person's distance is computed here."""
        return self.open_set.rule if self.open_set else DecisionRule()

    def person_threshold(self, fpir: float | None, faces: int) -> PersonThreshold | None:
        """Where a search in a gallery of so many faces names somebody, at this rate or the default one. None where
        neither searches nor pairs are known."""
        pairs = tuple({id(c): c.impostors for c in (self.calibration, self.reference) if c is not None}.values())
        known = self.open_set or OpenSetCalibration(DecisionRule())
        return known.threshold(fpir or self.default_fpir, max(1, faces), pairs)

    def probability(self, distances: Distances) -> Floats | None:
        return None if self.calibration is None else self.calibration.probability(distances.astype(np.float64))

    def fmr(self, distances: Distances) -> Floats | None:
        """Which share of this gallery's impostors come so near."""
        return None if self.calibration is None else self.calibration.fmr_estimate(distances.astype(np.float64))

    def threshold(self, fmr: float | None = None) -> DistanceThreshold | None:
        """The distance up to which a match passes at this false-match rate, or at the default one."""
        if fmr is None or self.calibration is None:
            return self._default
        return self.calibration.threshold(fmr)

    @cached_property
    def _default(self) -> DistanceThreshold | None:
        return None if self.calibration is None else self.calibration.threshold(self.default_fmr)


def _open_set(kept: Mapping[str, Any] | None) -> OpenSetCalibration | None:
    return OpenSetCalibration.from_dict(kept["calibration"]) if kept else None
