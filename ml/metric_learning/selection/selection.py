"""Choose between candidates by people held out, within a limit of time."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ml.embedders.base import Progress, TaskData, TrainingSet, ignore_progress, offset_progress
from ml.errors import TooFewPairs, WrongShape
from ml.metric_learning.selection.candidates import UNCHANGED, FitCandidate
from ml.metric_learning.selection.paired_rule import (
    MIN_PEOPLE,
    PairedGain,
    is_clearly_worse,
    measure_gain,
)
from ml.metric_learning.selection.people_folds import split_into_folds
from ml.metric_learning.selection.validation import FoldScores, FoldValidation

WEAK_PRECISION = 0.5
"""Where the descriptors reach less on people held out, fits from whitened axes are tried before held ones."""
PROGRESS_STEPS = 100
"""Steps of progress that are reported for each candidate."""


@dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    outcome: "better", "not better", "dropped" after some folds, "failed" or "not started"; why: the reason in words
    gain, low, accepted: see `PairedGain`; None where nothing was measured
    """

    name: str
    method: str
    outcome: str
    why: str
    gain: float | None = None
    low: float | None = None
    accepted: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, the reason in words, and what became of each candidate.

    people: number of people who were searched for; precision: their mean average precision if nothing changes
    """

    candidate: FitCandidate
    reason: str
    trials: tuple[Trial, ...] = ()
    people: int = 0
    precision: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as values for JSON."""
        return {
            "candidate": self.candidate.name,
            "method": self.candidate.method,
            "words": self.candidate.words,
            "changed": self.candidate.name != UNCHANGED,
            "reason": self.reason,
            "people": self.people,
            "precision": self.precision,
            "candidates": [asdict(trial) for trial in self.trials],
        }


@dataclass(frozen=True, eq=False)
class Selection:
    """A choice between candidates. The first is the one that changes nothing.

    data: what the candidates learn from; original: the same with the descriptors as they are, for the first candidate
    folds: how many parts of the people take turns in being held out
    max_seconds: no candidate is started after this time
    """

    data: TrainingSet
    original: TrainingSet
    candidates: Sequence[FitCandidate]
    folds: int
    max_seconds: float
    seed: int
    device: str

    def choose(self, progress: Progress) -> Choice:
        """Fit and measure the candidates, and return the best one, or the unchanged one if none is shown to be better.

        A candidate is better if a one-sided paired t-test over people says so, at a level of 5 % shared among all
        candidates. Of these, the one with the largest lower bound at the same level wins: a bolder candidate that gains
        more, but less surely, does not.
        """
        unchanged, *others = self.candidates
        started = time.monotonic()
        folds = list(split_into_folds(self.data.tasks[0], self.folds, self.seed))
        searches = [FoldValidation.draw(held_out, self.seed) for _, held_out in folds]
        people = sum(len(np.unique(search.people)) for search in searches)
        if people < MIN_PEOPLE:
            why = f"kept as it is: {people} people have several faces known to be the same, {MIN_PEOPLE} are needed"
            return Choice(unchanged, f"{why} to show that a change helps", people=people)
        parts = [(kept, search) for (kept, _), search in zip(folds, searches, strict=True) if len(search.queries)]
        before = [self._measure(self.original, unchanged, kept, search) for kept, search in parts]
        precision = float(np.concatenate([score.precision for score in before]).mean())
        is_weak = precision < WEAK_PRECISION
        others.sort(key=lambda candidate: (not candidate.is_closed_form, candidate.is_whitened != is_weak))
        best, trials = _Leader(before), list[Trial]()
        for number, candidate in enumerate(others, 1):
            begun = time.monotonic()
            trial = Trial(candidate.name, candidate.method, "not started", "the time was spent")
            if begun - started < self.max_seconds:
                report = offset_progress(PROGRESS_STEPS * (number - 1), PROGRESS_STEPS * len(self.candidates), progress)
                trial = self._try(trial, candidate, parts, before, best, report)
                trial = replace(trial, seconds=round(time.monotonic() - begun, 2))
            trials.append(trial)
            progress(PROGRESS_STEPS * number, PROGRESS_STEPS * len(self.candidates), {})
        return replace(_decide(unchanged, others, trials), people=people, precision=precision)

    def _try(
        self,
        trial: Trial,
        candidate: FitCandidate,
        parts: Sequence[tuple[TaskData, FoldValidation]],
        before: Sequence[FoldScores],
        best: "_Leader",
        progress: Progress,
    ) -> Trial:
        """Measure a candidate on each fold. It is dropped as soon as it is clearly worse than the best one so far."""
        scores = list[FoldScores]()
        for fold, (kept, search) in enumerate(parts):
            try:
                report = _share_progress(progress, fold, len(parts))
                scores.append(self._measure(self.data, candidate, kept, search, report))
            except (TooFewPairs, WrongShape) as error:
                return replace(trial, outcome="failed", why=str(error))
            gain = _measure_scores(scores, before, len(self.candidates) - 1)
            trial = replace(trial, gain=gain.value, low=gain.low, accepted=gain.accepted)
            if len(scores) < len(parts) and best.leads(scores):
                why = f"clearly worse than {best.name} after {len(scores)} of {len(parts)} folds"
                return replace(trial, outcome="dropped", why=why)
        if gain.is_better and gain.low > best.low:
            best.name, best.scores, best.low = candidate.name, scores, gain.low
        outcome, why = _describe_gain(gain)
        return replace(trial, outcome=outcome, why=why)

    def _measure(
        self,
        data: TrainingSet,
        candidate: FitCandidate,
        kept: TaskData,
        search: FoldValidation,
        progress: Progress = ignore_progress,
    ) -> FoldScores:
        embedder = candidate.build(self.seed, self.device)
        embedder.fit(replace(data, tasks=(kept,)), progress=progress)
        return search.score(embedder, data.rows, kept.task)


def _share_progress(progress: Progress, fold: int, folds: int) -> Progress:
    """Report the fit of one fold as a part of its candidate's progress, without the values of its loss."""
    return lambda step, steps, _: progress(
        int(PROGRESS_STEPS * (fold + step / max(1, steps)) / folds), PROGRESS_STEPS, {}
    )


@dataclass
class _Leader:
    """The best candidate so far. scores: of each fold; low: the lower bound of its gain"""

    scores: Sequence[FoldScores]
    name: str = UNCHANGED
    low: float = 0.0

    def leads(self, scores: Sequence[FoldScores]) -> bool:
        """Whether another candidate is clearly worse, by the folds that it was measured on."""
        differences = [after.precision - best.precision for after, best in zip(scores, self.scores, strict=False)]
        return is_clearly_worse(np.concatenate(differences))


def _measure_scores(scores: Sequence[FoldScores], before: Sequence[FoldScores], count: int) -> PairedGain:
    """Measure the gain of the folds so far. before: the scores of the unchanged candidate; count: of all candidates"""
    pairs = list(zip(scores, before, strict=False))
    precision = np.concatenate([after.precision - start.precision for after, start in pairs])
    accepted = np.concatenate([after.accepted - start.accepted for after, start in pairs])
    return measure_gain(precision, accepted, count)


def _describe_gain(gain: PairedGain) -> tuple[str, str]:
    """Return the outcome of a candidate that was measured on all folds, and the reason."""
    if gain.is_better:
        return "better", "better by more than chance explains"
    if gain.low > 0:
        return "not better", "more precise, but accepts fewer true pairs"
    return "not better", "no better than chance explains"


def _decide(unchanged: FitCandidate, others: Sequence[FitCandidate], trials: Sequence[Trial]) -> Choice:
    better = [(trial, candidate) for trial, candidate in zip(trials, others, strict=True) if trial.outcome == "better"]
    if not better:
        tried = [trial for trial in trials if trial.gain is not None]
        reason = "kept as it is: no candidate could be measured"
        if tried:
            best = max(tried, key=lambda trial: trial.low if trial.low is not None else -np.inf)
            reason = (
                f"kept as it is: no candidate is shown to be better than {unchanged.words}; the nearest, {best.name}, "
                f"gains {_points(best.gain)} points of mean average precision (at least {_points(best.low)})"
            )
        return Choice(unchanged, reason, tuple(trials))
    trial, candidate = max(better, key=lambda pair: pair[0].low if pair[0].low is not None else -np.inf)
    reason = (
        f"{candidate.words}: gains {_points(trial.gain)} points of mean average precision on people held out "
        f"(at least {_points(trial.low)})"
    )
    return Choice(candidate, reason, tuple(trials))


def _points(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:+.1f}"
