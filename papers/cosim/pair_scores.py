"""Compute accuracies, paired differences and distances from the scores of systems."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ml.evaluation.comparisons.paired_tests import FoldComparison, compare_folds
from ml.evaluation.intervals import bootstrap_pairs
from ml.evaluation.restricted import PairSimilarities, Scores, fuse_similarities, mark_correct
from ml.evaluation.verification_pairs import VerificationPairs
from ml.fusion.normalise import Normalise
from papers.cosim.systems import System, View2
from papers.harness.table_types import Computation, Figure, Result

Right = NDArray[np.bool_]
ACCURACY = "accuracy"


@dataclass(frozen=True, eq=False)
class SystemScores:
    """The scores of a system, or of a fusion, in each fold.

    computations: one per fold, for each member of a fusion; results: their results
    """

    name: str
    folds: tuple[PairSimilarities, ...]
    computations: tuple[Computation, ...]
    results: tuple[Result, ...]

    @property
    def parameters(self) -> int:
        """The number of parameters learned from pairs; for a fusion, of all members."""
        return sum(int(r.record["parameters"]) for r in self.results[:: len(self.folds)])


@dataclass(frozen=True, eq=False)
class PairScoreReader:
    """Reads the scores of finished computations. numbers: of the folds"""

    view: View2
    numbers: Sequence[int]

    def scores(self, name: str, computations: Sequence[Computation]) -> SystemScores:
        results = tuple(self.view.context.results(computations))
        return SystemScores(
            name,
            tuple(PairSimilarities(r.arrays["judges"], r.arrays["test"]) for r in results),
            tuple(computations),
            results,
        )

    def system(self, system: System) -> SystemScores:
        return self.scores(system.name, [self.view.fit(system, fold) for fold in self.numbers])

    def fused(self, name: str, members: Sequence[SystemScores]) -> SystemScores:
        """Fuse the scores of systems."""
        judges = self._judges(members[0])
        folds = tuple(fuse_similarities([m.folds[i] for m in members], judges[i]) for i in range(len(self.numbers)))
        computations = tuple(w for m in members for w in m.computations)
        return SystemScores(name, folds, computations, tuple(r for m in members for r in m.results))

    def right(self, system_scores: SystemScores) -> list[Right]:
        """Return, for each fold, whether its pairs are decided correctly."""
        every = zip(system_scores.folds, self._judges(system_scores), self.tests, strict=True)
        return [mark_correct(scores, judges, test) for scores, judges, test in every]

    def accuracy(self, system_scores: SystemScores) -> Figure:
        """Return the accuracy in percent. The interval resamples people; sd is over folds."""
        correct = self.right(system_scores)
        owners = [self.view.people[test.index] for test in self.tests]
        mean = bootstrap_pairs(correct, owners)
        sd = float(np.std([r.mean() for r in correct], ddof=1)) if len(correct) > 1 else float("nan")
        return Figure(100 * mean.value, 100 * mean.low, 100 * mean.high, 100 * sd, len(correct))

    def difference(self, a: SystemScores, b: SystemScores) -> FoldComparison:
        """Compare a with b over folds: a - b in percent."""
        x, y = (np.array([100 * r.mean() for r in self.right(one)]) for one in (a, b))
        return compare_folds(x, y)

    def strange(self, system_scores: SystemScores) -> list[Scores]:
        """Return 1 - P(same) of each fold's pairs (000, equations 31 and 32), with P from the network."""
        every = zip(system_scores.folds, system_scores.results, strict=True)
        return [np.asarray(expit(-scores.test - result.record["bias"])) for scores, result in every]

    def calibrated(self, system_scores: SystemScores) -> list[Scores]:
        """Return 1 - P(same), with P calibrated on the judging pairs. For fusions, whose scores are no logits."""
        distances = []
        for scores, judges in zip(system_scores.folds, self._judges(system_scores), strict=True):
            odds = Normalise().fit(scores.judges[:, None], judges.same)
            distances.append(np.asarray(expit(-odds(scores.test[:, None])[:, 0])))
        return distances

    @property
    def tests(self) -> list[VerificationPairs]:
        return [self.view.folds[fold] for fold in self.numbers]

    def _judges(self, system_scores: SystemScores) -> list[VerificationPairs]:
        return [self.view.folds[system_scores.results[i].record["judge"]] for i in range(len(self.numbers))]
