"""000: "Fisher vector faces" without identities, its reference [41] (Simonyan et al., BMVC 2013)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Progress
from ml.evaluation.restricted import RestrictedFold
from ml.evaluation.verification import det
from ml.evaluation.verification_pairs import VerificationPairs
from papers.cosim.systems import View2
from papers.harness.table_types import Computation, ComputationOutput

COSTS = (0.1, 1.0, 10.0, 100.0)
"""Costs of the SVM, chosen on the judging pairs."""
Scores = NDArray[np.float64]


def make_fvf_computation(view: View2, fold: int) -> Computation:
    """Fit a diagonal metric: a linear SVM over the squared differences of two Fisher vectors.

    Arrays and record are those of `View2.fit`.
    """
    key = {"method": "diagonal svm", "features": "fisher", "costs": COSTS, "protocol": "view2 restricted", "fold": fold}

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        current = RestrictedFold.of([np.zeros((len(view.photos), 1), np.float32)], view.folds, fold)
        kernel = view.context.store.do(make_product_computation(view)).arrays["kernel"]
        ends = np.cumsum([0, *(len(p.same) for p in view.folds)])
        lines = [np.arange(ends[i], ends[i + 1]) for i in range(len(view.folds))]
        others = [i for i in range(len(view.folds)) if i not in (fold, current.judge)]
        learners, same = (
            np.concatenate([lines[i] for i in others]),
            VerificationPairs.of([view.folds[i] for i in others]).same,
        )
        scores = {}
        for step, cost in enumerate(COSTS):
            scores[cost] = _score_pairs(kernel, learners, same, cost, (lines[current.judge], lines[fold]))
            progress(step + 1, len(COSTS), {})
        best = max(COSTS, key=lambda cost: _auc(scores[cost][0], current.judges.same))
        judges, test = scores[best]
        record = {
            "judge": current.judge,
            "notes": {"cost": best},
            "parameters": view.context.photos.blocks("fisher")[0] + 1,
        }
        return {**record, "bias": 0.0}, {"judges": judges, "test": test, "curve": np.empty((0, 2))}

    return Computation(f"FVF fold {fold}", key, 15.0, run)


def make_product_computation(view: View2) -> Computation:
    """Compute `kernel` (P, P): the inner products of the squared differences of all pairs. Uses no labels."""
    key = {"products": "squared differences", "features": "fisher", "protocol": "view2"}

    def run(folder: Path, progress: Progress) -> ComputationOutput:
        first, second = VerificationPairs.of(view.folds).index.T
        rows = view.context.photos.rows("lfw", "fisher")[view.photos]
        squared = (rows[first] - rows[second]) ** 2
        kernel = squared @ squared.T
        return {}, {"kernel": kernel / np.diagonal(kernel).mean()}

    return Computation("FVF, products", key, 60.0, run)


def _score_pairs(
    kernel: NDArray[np.float32], learners: NDArray[np.int64], same: NDArray[np.bool_], cost: float,
    pair_sets: tuple[NDArray[np.int64], ...],
) -> list[Scores]:  # fmt: skip
    from sklearn.svm import SVC  # half a second to load

    machine = SVC(C=cost, kernel="precomputed", class_weight="balanced", cache_size=500)
    machine.fit(kernel[np.ix_(learners, learners)], same)
    return [np.asarray(machine.decision_function(kernel[np.ix_(lines, learners)]), np.float64) for lines in pair_sets]


def _auc(scores: Scores, same: NDArray[np.bool_]) -> float:
    return det(-scores[same], -scores[~same]).auc
