"""LFW's restricted protocol (view 2): a model may only learn from the given pairs of the other folds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.evaluation.verification import best_threshold
from ml.evaluation.verification_pairs import VerificationPairs
from ml.fusion.normalise import Normalise
from ml.fusion.svm import Svm
from ml.metric_learning.holdout import shuffle_people
from ml.types import Rows

Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RestrictedFold:
    """The split of one test fold: eight folds to learn from, one to judge by (choose thresholds), and one to test.

    data: the pairs of all other folds, and their faces. The person of a face is the number of its fold, so an embedder
        with the same seed and `held_out` = `share` holds out the judging fold and stops early by it.
    judges: pairs from which the threshold, the normalisation and the fusion weights are found; judge: their fold
    test: pairs of the test fold; share: share of the folds in `data` that the judging fold makes up
    """

    data: TrainingSet
    judges: VerificationPairs
    test: VerificationPairs
    judge: int
    share: float

    @classmethod
    def of(cls, rows: Sequence[Rows], folds: Sequence[VerificationPairs], k: int, seed: int = 0) -> "RestrictedFold":
        """Split the folds for testing fold k. rows: for each descriptor, the (N, D) rows of all photos."""
        others = [i for i in range(len(folds)) if i != k]
        pairs = VerificationPairs.of([folds[i] for i in others])
        faces, ends = np.unique(pairs.index, return_inverse=True)
        at = ends.reshape(-1, 2)
        fold = np.zeros(len(faces), np.int64)
        fold[at] = np.repeat(others, [len(folds[i].same) for i in others])[:, None]
        ones, unknown = np.ones(len(at), np.float32), np.full(len(faces), np.nan)
        task = TaskData("identity", np.arange(len(faces)), unknown, fold, 0.0, at, pairs.same, ones)
        parts = [part[faces] for part in rows]
        data = TrainingSet(np.concatenate(parts, axis=1), (task,), tuple(part.shape[1] for part in parts))
        judge = int(shuffle_people(task, seed)[0])
        return cls(data, folds[judge], folds[k], judge, 1 / len(others))

    @property
    def learners(self) -> TrainingSet:
        """The data without the judging fold's pairs, for methods that cannot hold them out themselves."""
        [task] = self.data.tasks
        kept = task.people[task.pairs[:, 0]] != self.judge
        fewer = replace(task, pairs=task.pairs[kept], same=task.same[kept], weights=task.weights[kept])
        return replace(self.data, tasks=(fewer,))


@dataclass(frozen=True, eq=False)
class PairSimilarities:
    """One system's scores of (J,) judging pairs and (T,) test pairs. A higher score means more alike."""

    judges: Scores
    test: Scores


def score_pairs(embedder: Embedder, round_: RestrictedFold, rows: Rows) -> PairSimilarities:
    """Score the pairs with a fitted embedder. rows: (N, D) of all photos; only those of the pairs are used."""

    def scores(pairs: VerificationPairs) -> Scores:
        first, second = (embedder.embed(rows[pairs.index[:, end]]) for end in (0, 1))
        return -embedder.metric.paired_distances(first, second).astype(np.float64)

    return PairSimilarities(scores(round_.judges), scores(round_.test))


def fuse_similarities(systems: Sequence[PairSimilarities], judges: VerificationPairs) -> PairSimilarities:
    """Fuse the scores of several systems (000, section 4.2). All of it is fitted to the judging pairs."""
    known, queried = (np.stack([getattr(s, part) for s in systems], 1) for part in ("judges", "test"))
    normal = Normalise().fit(known, judges.same)
    machine = Svm().fit(normal(known), judges.same)
    return PairSimilarities(machine(normal(known)), machine(normal(queried)))


def mark_correct(system: PairSimilarities, judges: VerificationPairs, test: VerificationPairs) -> NDArray[np.bool_]:
    """Return (T,) whether each test pair is decided correctly at the threshold that is best on the judging pairs."""
    return np.asarray((system.test >= -best_threshold(-system.judges, judges.same)) == test.same)
