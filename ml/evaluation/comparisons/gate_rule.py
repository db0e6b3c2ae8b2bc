"""The gate: decide from a comparison whether a candidate may be published. docs/decisions/0008 explains the rule."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ml.evaluation.comparisons.models import FIRST, MAP, NAMED, PAIRS, STRANGERS, Difference, ModelComparison


@dataclass(frozen=True)
class GateVerdict:
    """The verdict on a candidate, as sentences. It passes if there are none.

    reasons: how the candidate is shown to be worse
    unclear: harm that the evidence cannot exclude
    """

    reasons: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reasons and not self.unclear


MIN_PEOPLE = 10
"""People with a face to be found, or with labelled faces, without whom no verdict is given."""
TOLERANCE = 0.005
"""Losses up to half a percentage point are ignored, even if they are significant."""
MAX_HARM = {MAP: 0.05, FIRST: 0.05, NAMED: 0.10, PAIRS: 0.05}
"""The loss in each metric that the evidence must exclude."""
RULE_OF_THREE = 3.0
"""If an event occurred for none of n people, its rate may still be as high as 3/n (95 % confidence)."""
JUDGED_METRICS = (MAP, FIRST, NAMED, STRANGERS, PAIRS)
METRIC_NAMES = {NAMED: "queries named rightly", STRANGERS: "strangers named", PAIRS: "labelled pairs told right"}


def judge(comparison: ModelComparison) -> GateVerdict:
    """Decide whether a candidate may replace the baseline, from the paired differences over people.

    A metric counts as worse if the whole interval of its difference lies on the wrong side of 0 and the difference
    exceeds TOLERANCE. It is unclear if it may be worse by more than MAX_HARM. Intervals are taken to reach at least 3/n
    to either side, with n the number of people, because a few people show little even if both models answer alike.
    Without a baseline, the candidate must only rank better than chance. A candidate that compares faces exactly as the
    baseline does is equal, and passes.
    """
    if comparison.identical:
        return GateVerdict()
    if comparison.people < MIN_PEOPLE:
        return GateVerdict(unclear=(f"{comparison.people} people to measure on, {MIN_PEOPLE} needed",))
    reasons = [*_random(comparison), *(text for name in JUDGED_METRICS for text in _shown(comparison, name))]
    unclear = [text for name in MAX_HARM for text in _unclear(comparison, name)]
    return GateVerdict(tuple(reasons), () if reasons else tuple(unclear))


def _random(comparison: ModelComparison) -> Iterator[str]:
    first = comparison.candidate.get(FIRST)
    if first is not None and not first.low > comparison.chance:
        yield f"1-call@1 is {first.value:.1%}, not shown to be above a random order's {comparison.chance:.1%}"


def _name(metric: str) -> str:
    """Return the name of a metric as it is shown to people."""
    return METRIC_NAMES.get(metric, metric)


def _shown(comparison: ModelComparison, name: str) -> Iterator[str]:
    difference = comparison.difference.get(name)
    if difference is None:
        return
    sign = -1 if name == STRANGERS else 1
    worst = sign * (difference.high if sign > 0 else difference.low)
    if not (math.isfinite(difference.value) and math.isfinite(worst)):
        yield f"{_name(name)}: not a number"
    elif worst < 0 and sign * difference.value < -TOLERANCE:
        now, before = comparison.candidate[name].value, comparison.baseline[name].value
        yield (
            f"{_name(name)} {now:.1%}, now {before:.1%}: {_points(abs(difference.value))} points worse "
            f"(95 % interval of the difference {_points(difference.low)} to {_points(difference.high)}, "
            f"p {difference.p:.2g})"
        )


def _unclear(comparison: ModelComparison, name: str) -> Iterator[str]:
    difference = comparison.difference.get(name)
    if difference is None or not math.isfinite(difference.value):
        return
    allowed, people = MAX_HARM[name], comparison.people
    half = max(difference.value - difference.low, RULE_OF_THREE / people)
    if difference.value - half < -allowed:
        yield (
            f"{_name(name)}: the difference is {_points(difference.value)} points, and with {people} people "
            f"a loss of {_points(half - difference.value)} cannot be excluded; {_points(allowed)} is the most"
            + _needed(difference, allowed, people)
        )


def _needed(difference: Difference, allowed: float, people: int) -> str:
    """Say how many people would be enough if they differed as these do."""
    room = difference.value + allowed
    if room <= 0:
        return ""
    wide = people * ((difference.value - difference.low) / room) ** 2
    return f"; about {math.ceil(max(wide, RULE_OF_THREE / room))} people would do, if they go on like this"


def _points(share: float) -> str:
    return f"{100 * share:.1f}"
