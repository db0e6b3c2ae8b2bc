"""May a candidate be published? A pure function that gives its reasons. The rule: docs/decisions/0008."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ml.evaluation.comparisons.models import FIRST, MAP, NAMED, PAIRS, STRANGERS, Difference, ModelComparison


@dataclass(frozen=True)
class GateVerdict:
    """What a comparison says of a candidate, as sentences.

    reasons: harm that is shown
    unclear: harm that the evidence is too thin to exclude
    """

    reasons: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reasons and not self.unclear


MIN_PEOPLE = 10
"""People who must have something to be found, or whose faces must be labelled, before anything is judged."""
TOLERANCE = 0.005
"""A loss of at most half a point is none, however surely it is shown."""
MAX_HARM = {MAP: 0.05, FIRST: 0.05, NAMED: 0.10, PAIRS: 0.05}
"""By metric: the loss that the evidence must exclude."""
RULE_OF_THREE = 3.0
"""What happened to none of n people may still happen to 3/n of them (95 % confidence)."""
JUDGED = (MAP, FIRST, NAMED, STRANGERS, PAIRS)
NAMES = {NAMED: "queries named rightly", STRANGERS: "strangers named", PAIRS: "labelled pairs told right"}


def judge(comparison: ModelComparison) -> GateVerdict:
    """Whether a candidate may take a baseline's place, by the paired differences over people.

    Refused is what is shown to be worse: a difference whose interval lies wholly on the wrong side of 0, by more than
    TOLERANCE. Unclear is what may be worse by more than MAX_HARM: no interval is taken to reach less than 3/n to
    either side, n being the people, since few people show little even where both models do the same. Without a
    baseline the candidate need only rank better than a random order.
    """
    if comparison.people < MIN_PEOPLE:
        return GateVerdict(unclear=(f"{comparison.people} people to measure on, {MIN_PEOPLE} needed",))
    reasons = [*_random(comparison), *(text for name in JUDGED for text in _shown(comparison, name))]
    unclear = [text for name in MAX_HARM for text in _unclear(comparison, name)]
    return GateVerdict(tuple(reasons), () if reasons else tuple(unclear))


def _random(comparison: ModelComparison) -> Iterator[str]:
    first = comparison.candidate.get(FIRST)
    if first is not None and not first.low > comparison.chance:
        yield f"1-call@1 is {first.value:.1%}, not shown to be above a random order's {comparison.chance:.1%}"


def _shown(comparison: ModelComparison, name: str) -> Iterator[str]:
    difference = comparison.difference.get(name)
    if difference is None:
        return
    sign = -1 if name == STRANGERS else 1
    worst = sign * (difference.high if sign > 0 else difference.low)
    if not (math.isfinite(difference.value) and math.isfinite(worst)):
        yield f"{NAMES.get(name, name)}: not a number"
    elif worst < 0 and sign * difference.value < -TOLERANCE:
        now, before = comparison.candidate[name].value, comparison.baseline[name].value
        yield (
            f"{NAMES.get(name, name)} {now:.1%}, now {before:.1%}: {_points(abs(difference.value))} points worse "
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
            f"{NAMES.get(name, name)}: the difference is {_points(difference.value)} points, and with {people} people "
            f"a loss of {_points(half - difference.value)} cannot be excluded; {_points(allowed)} is the most"
            + _needed(difference, allowed, people)
        )


def _needed(difference: Difference, allowed: float, people: int) -> str:
    """How many people would do, if they differ as these do."""
    room = difference.value + allowed
    if room <= 0:
        return ""
    wide = people * ((difference.value - difference.low) / room) ** 2
    return f"; about {math.ceil(max(wide, RULE_OF_THREE / room, people + 1))} people would do, if they go on like this"


def _points(share: float) -> str:
    return f"{100 * share:.1f}"
