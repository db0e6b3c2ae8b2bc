"""Fit the systems of 000: for each fold of LFW's view 2, from the given pairs of the other folds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml import registry
from ml.embedders.base import Embedder, Progress, TrainingSet
from ml.evaluation.restricted import RestrictedFold, score_pairs
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids, Rows
from papers.harness.run_context import DESCRIPTOR_WIDTHS, FOLDS, Method, RunContext
from papers.harness.table_types import Computation, ComputationOutput

DESCRIPTOR_AXES = 500
"""Principal components of a descriptor, fitted to the training faces; 000 starts from 300."""
UNLEARNED_ARRAYS = ("axes", "offset", "shares")
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class System:
    """A method on some features. stops: whether the judging fold stops it early; otherwise it never sees that fold"""

    name: str
    method: Method
    features: str
    stops: bool = True

    def with_options(self, name: str, **options: Any) -> "System":
        method = Method(self.method.name, self.method.dim, {**self.method.options, **options})
        return System(name, method, self.features, self.stops)


@dataclass(frozen=True, eq=False)
class View2:
    """LFW's ten folds, with only the photos that occur in pairs, numbered from 0."""

    context: RunContext

    @cached_property
    def photos(self) -> Ids:
        """The (N,) positions of the photos in the list of all of LFW."""
        return np.unique(self.context.pairs())

    @cached_property
    def folds(self) -> tuple[VerificationPairs, ...]:
        given = [self.context.protocol(f"view2:{fold}").pairs for fold in FOLDS]
        return tuple(VerificationPairs(np.searchsorted(self.photos, p.index), p.same) for p in given)

    @cached_property
    def people(self) -> Ids:
        """The (N,) people of the photos."""
        return self.context.protocol("view2:0").people[self.photos]

    def narrow(self, feature: str, fold: int) -> Computation:
        """Project a descriptor to the principal axes of a fold's training faces. Array: `rows` (N, DESCRIPTOR_AXES)."""
        key = {"narrow": DESCRIPTOR_AXES, "features": feature, "protocol": "view2 restricted", "fold": fold}

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            rows = self.context.photos.rows("lfw", feature)[self.photos]
            faces = np.unique(VerificationPairs.of([p for i, p in enumerate(self.folds) if i != fold]).index)
            options = {
                "dim": min(DESCRIPTOR_AXES, rows.shape[1], len(faces) - 1),
                "whiten": False,
                "sample": len(faces),
            }
            axes = registry.build("embedders", "wpca", **options)
            axes.fit(TrainingSet(rows[faces], ()), progress=progress)
            return {"faces": len(faces)}, {"rows": axes.embed(rows)}

        return Computation(
            f"{feature} fold {fold}", key, 2 + 8 * DESCRIPTOR_WIDTHS[feature] / DESCRIPTOR_WIDTHS["lbp"], run
        )

    def rows(self, features: str, fold: int) -> list[Rows]:
        """Return the (N, r) rows of each feature."""
        return [self.context.store.do(self.narrow(one, fold)).arrays["rows"] for one in features.split("+")]

    def fit(self, system: System, fold: int) -> Computation:
        """Fit a system for a fold.

        Arrays: `judges` and `test`, the scores of these pairs; `curve` (L, 2), steps and AUC of the judging pairs.
        Record: `judge`, the judging fold; `parameters`, learned from pairs; `bias`, added to a score in the sigmoid.
        """
        key = {
            **system.method.key, "features": system.features, "narrow": DESCRIPTOR_AXES, "protocol": "view2 restricted",
            "stops": system.stops, "fold": fold,
        }  # fmt: skip

        def run(folder: Path, progress: Progress) -> ComputationOutput:
            parts = self.rows(system.features, fold)
            current = RestrictedFold.of(parts, self.folds, fold)
            fitted, curve = _fitted(system, current, progress)
            scores = score_pairs(fitted, current, np.concatenate(parts, axis=1))
            record = {"judge": current.judge, "notes": dict(fitted.notes), **_size(fitted, system)}
            return record, {"judges": scores.judges, "test": scores.test, "curve": np.array(curve).reshape(-1, 2)}

        return Computation(f"{system.name} fold {fold}", key, _guess(system), run)

    def fits(self, systems: Sequence[System], folds: Sequence[int]) -> list[Computation]:
        """Return the fits, after the computations that they need."""
        features = dict.fromkeys(one for s in systems for one in s.features.split("+"))
        narrow = [self.narrow(one, fold) for fold in folds for one in features]
        return narrow + [self.fit(system, fold) for fold in folds for system in systems]


def _guess(system: System) -> float:
    options, parts = system.method.options, len(system.features.split("+"))
    return 3.0 + 0.0015 * float(options.get("steps", 0)) * parts * float(options.get("inner", 300)) / 300


def _fitted(system: System, current: RestrictedFold, progress: Progress) -> tuple[Embedder, Curve]:
    curve: Curve = []

    def report(step: int, steps: int, values: dict[str, float]) -> None:
        seen = values.get("held_out")
        if seen is not None and (not curve or curve[-1][1] != seen):
            curve.append((step, seen))
        progress(step, steps, values)

    options = {**system.method.options} | ({"held_out": current.share} if system.stops else {})
    embedder = Method(system.method.name, system.method.dim, options).build()
    return embedder.fit(current.data if system.stops else current.learners, progress=report), curve


def _size(fitted: Embedder, system: System) -> dict[str, Any]:
    learned: dict[str, NDArray[Any]] = {} if system.method.name == "wpca" else fitted.learned
    counted = sum(a.size for name, a in learned.items() if not name.startswith(UNLEARNED_ARRAYS))
    alone = "bias" in learned and system.method.name != "cosim_average"
    return {"parameters": int(counted), "bias": float(learned["bias"].ravel()[0]) if alone else 0.0}
