"""Compare rules by which `auto` could choose: what each one gains and loses on people never seen.

    python -m papers.beyond.selection_rules --data DIR [--features dlib_resnet] [--splits 10] [--labels 200 1000 5000]
        [--condition CONDITION ...] [--draw 0] [--cache DIR]

Splits, conditions and labels are those of `safe_learning`, the candidates `wccn` and `wpca`. Each candidate is fitted
and measured once, on the people held out in five folds and on the people never seen; every rule then chooses by the
former and is judged by the latter. `--draw 1` draws other photos and labels of the same people. Prints a table in
Markdown, in points of mean average precision.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.threads import set_threads
from ml.embedders.auto import Auto
from ml.embedders.base import TrainingSet
from ml.embedders.cosine import Cosine
from ml.metric_learning.selection.candidates import FitCandidate, list_candidates
from ml.metric_learning.selection.paired_rule import MAX_ACCEPT_LOSS, MIN_PEOPLE, bound_error
from ml.metric_learning.selection.people_folds import split_into_folds
from ml.metric_learning.selection.validation import FoldValidation
from papers.beyond.degradations import CONDITIONS
from papers.beyond.mixed_conditions import MixedSplit, load_split
from papers.harness.photos import Photos

METHODS = ("wccn", "wpca")
SPLITS_PER_DRAW = 100
MAX_LOSS_POINTS = 0.2
"""The goal: no fit loses more."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedFit:
    """What C candidates reach in one fit, less what the unchanged descriptors do.

    precision, accepted: (C, P) for each person held out; gains: (C,) mean average precision on people never seen
    """

    labels: int
    precision: Values
    accepted: Values
    gains: Values


@dataclass(frozen=True)
class ChoiceRule:
    """Which candidates count as better, by a one-sided paired t-test, and which of them is taken.

    level: of the test; shared: among all candidates, or each tested at the full level, from gentle to bold until one
    fails; ranking: the level of the lower bound by which the better ones are ranked; margin: what a gain must exceed
    """

    level: float
    ranking: float
    shared: Literal["all", "in sequence"] = "all"
    margin: float = 0.0

    def choose(self, fit: RecordedFit) -> int | None:
        """Return the position of the candidate that is taken; None: nothing is changed."""
        if fit.precision.shape[1] < MIN_PEOPLE:
            return None
        level = self.level / len(fit.precision) if self.shared == "all" else self.level
        is_better = self._bound(fit, level) > self.margin
        if self.shared == "in sequence":
            is_better = np.logical_and.accumulate(is_better)
        is_better &= fit.accepted.mean(axis=1) >= -MAX_ACCEPT_LOSS
        ranked = np.where(is_better, self._bound(fit, self.ranking), -np.inf)
        return int(ranked.argmax()) if is_better.any() else None

    @staticmethod
    def _bound(fit: RecordedFit, level: float) -> Values:
        return np.array([values.mean() - bound_error(values, level) for values in fit.precision])


COUNT = len(list_candidates(128, 1000, methods=METHODS)) - 1
RULES = {
    "5 % shared; ranked at 5 %": ChoiceRule(0.05, 0.05),
    "5 % shared; ranked at the shared level": ChoiceRule(0.05, 0.05 / COUNT),
    "2 % shared; ranked at 2 %": ChoiceRule(0.02, 0.02),
    "1 % shared; ranked at 1 %": ChoiceRule(0.01, 0.01),
    "0.1 % shared; ranked at 0.1 %": ChoiceRule(0.001, 0.001),
    "5 % shared, gain above 0.2; ranked at 5 %": ChoiceRule(0.05, 0.05, margin=0.002),
    "5 % in sequence; ranked at 5 %": ChoiceRule(0.05, 0.05, "in sequence"),
    "5 % in sequence; ranked at the shared level": ChoiceRule(0.05, 0.05 / COUNT, "in sequence"),
    "1 % in sequence; ranked at 1 %": ChoiceRule(0.01, 0.01, "in sequence"),
}


def record_fit(split: MixedSplit, labels: int) -> RecordedFit:
    """Fit and measure all candidates on one split."""
    data = split.draw_training_set(labels)
    candidates = list_candidates(data.rows.shape[1], len(data.tasks[0].faces), methods=METHODS)
    scores = [np.concatenate(parts, axis=-1) for parts in zip(*_score_folds(data, candidates), strict=True)]
    precision, accepted = (values[1:] - values[0] for values in scores)
    before = split.search(Cosine()).precision
    gains = [(split.search(c.build(0, "cpu").fit(data)).precision - before).mean() for c in candidates[1:]]
    return RecordedFit(labels, precision, accepted, np.array(gains))


def _score_folds(data: TrainingSet, candidates: Sequence[FitCandidate]) -> Iterator[tuple[Values, Values]]:
    """Yield precision and accepted of each fold: (C + 1, P) for the people held out."""
    for kept, held_out in split_into_folds(data.tasks[0], Auto().folds, seed=0):
        search, part = FoldValidation.draw(held_out, seed=0), replace(data, tasks=(kept,))
        scores = [search.score(c.build(0, "cpu").fit(part), data.rows, kept.task) for c in candidates]
        yield np.array([score.precision for score in scores]), np.array([score.accepted for score in scores])


def make_row(name: str, rule: ChoiceRule, fits: Sequence[RecordedFit]) -> str:
    """Make a row of the table."""
    choices = [rule.choose(fit) for fit in fits]
    gains = 100 * np.array([0.0 if i is None else fit.gains[i] for i, fit in zip(choices, fits, strict=True)])
    counts = (sum(i is not None for i in choices), (gains < 0).sum(), (gains < -MAX_LOSS_POINTS).sum())
    labels = np.array([fit.labels for fit in fits])
    means = [f"{gains[labels == count].mean():+.2f}" for count in np.unique(labels)]
    return f"| {' | '.join([name, *map(str, counts), f'{gains.min():+.2f}', *means])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".likeness/reproduce"))
    parser.add_argument("--features", default="dlib_resnet")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--labels", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--condition", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args()
    set_threads(1)
    photos, fits = Photos(options.data, options.cache), list[RecordedFit]()
    for condition in options.condition:
        for number in range(options.splits):
            loaded = load_split(photos, options.features, condition, number)
            split = replace(loaded, number=number + SPLITS_PER_DRAW * options.draw)
            fits += [record_fit(split, labels) for labels in options.labels]
    counts = [f"{count:,} labels" for count in sorted(set(options.labels))]
    print(f"| rule | changed | lose | lose more than {MAX_LOSS_POINTS} | worst | {' | '.join(counts)} |")
    print("|---" * (5 + len(counts)) + "|")
    for name, rule in RULES.items():
        print(make_row(name, rule, fits))


if __name__ == "__main__":
    main()
