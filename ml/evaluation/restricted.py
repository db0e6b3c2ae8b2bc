"""LFW's restricted protocol (view 2): nothing is learned from but the given pairs of all folds but the one judged."""

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
class Round:
    """One fold's turn to be judged, and who learns: the pairs of the others, and of those one that judges.

    data: the pairs of all other folds, and their faces alone; a face's person is the number of its fold, so that an
        embedder of the same seed with `held_out` = `share` keeps the judges out and is stopped by them
    judges: by them the threshold, the normalisation and the weights of a fusion are found; test: the fold itself
    """

    data: TrainingSet
    judges: VerificationPairs
    test: VerificationPairs
    judge: int
    share: float

    @classmethod
    def of(cls, rows: Sequence[Rows], folds: Sequence[VerificationPairs], k: int, seed: int = 0) -> "Round":
        """rows: of each descriptor, (N, D) of all photos; k: the fold that is judged."""
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
        """Without the judges' pairs, for what cannot hold them out by itself."""
        [task] = self.data.tasks
        kept = task.people[task.pairs[:, 0]] != self.judge
        fewer = replace(task, pairs=task.pairs[kept], same=task.same[kept], weights=task.weights[kept])
        return replace(self.data, tasks=(fewer,))


@dataclass(frozen=True, eq=False)
class Said:
    """What one system says of a round's pairs, (J,) of the judges and (T,) of the test: higher is more alike."""

    judges: Scores
    test: Scores


def said(embedder: Embedder, round_: Round, rows: Rows) -> Said:
    """rows: (N, D) of all photos, of which only the pairs' are looked at."""

    def scores(pairs: VerificationPairs) -> Scores:
        first, second = (embedder.embed(rows[pairs.index[:, end]]) for end in (0, 1))
        return -embedder.metric.paired_distances(first, second).astype(np.float64)

    return Said(scores(round_.judges), scores(round_.test))


def fused(systems: Sequence[Said], judges: VerificationPairs) -> Said:
    """Late fusion (000, section 4.2): normalised and weighed by what the judges' pairs are."""
    known, queried = (np.stack([getattr(s, part) for s in systems], 1) for part in ("judges", "test"))
    normal = Normalise().fit(known, judges.same)
    machine = Svm().fit(normal(known), judges.same)
    return Said(machine(normal(known)), machine(normal(queried)))


def right(system: Said, judges: VerificationPairs, test: VerificationPairs) -> NDArray[np.bool_]:
    """(T,) whether each pair of the test is taken for what it is, at the threshold that is best for the judges'."""
    return np.asarray((system.test >= -best_threshold(-system.judges, judges.same)) == test.same)
