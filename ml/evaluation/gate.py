"""May a candidate be published? A pure function that gives its reasons."""

from dataclasses import dataclass

from ml.evaluation.intervals import Interval
from ml.evaluation.records import Report


@dataclass(frozen=True)
class Verdict:
    """`reasons`: every figure that speaks against it, as sentences; empty where it passed."""

    passed: bool
    reasons: tuple[str, ...] = ()


ABOVE_CHANCE = 1.5


def judge(candidate: Report, current: Report | None, slack: float = 0.005) -> Verdict:
    """Compares a candidate with the one that serves, both measured on one protocol.

    slack: how much of a rate (0..1) may be lost before it counts. Without a current model the candidate need only
    rank better than at random. Where so few faces were searched that any order has one of the person among its first
    ten, 1-call@10 says nothing, and is not asked.
    """
    against = []
    found, chance = candidate.ncall["10"].value, candidate.chance_at_10
    if _telling(candidate) and not found >= ABOVE_CHANCE * chance:
        against.append(f"1-call@10 is {found:.1%}, hardly above a random order's {chance:.1%}")
    if current is not None:
        against += _lost(candidate, current, slack)
    return Verdict(not against, tuple(against))


def figures(report: Report) -> dict[str, Interval]:
    """What is compared, by the name that reasons use."""
    found = {"mAP": report.mean_average_precision, "1-call@1": report.ncall["1"]}
    return found | ({"1-call@10": report.ncall["10"]} if _telling(report) else {})


def _telling(report: Report) -> bool:
    """Whether 1-call@10 can show that a ranking is no random one."""
    return ABOVE_CHANCE * report.chance_at_10 <= 1


def _lost(candidate: Report, current: Report, slack: float) -> list[str]:
    measured = [(r.protocol, r.task, r.queries, r.gallery) for r in (candidate, current)]
    if measured[0] != measured[1]:
        told = [f"{p} ({t}, {q} queries, {g} faces)" for p, t, q, g in measured]
        return [f"measured on {told[0]}, the current model on {told[1]}: measure both on one"]
    then = figures(current)
    return [
        f"{name} {value.value:.1%}, now {then[name].value:.1%}: {then[name].value - value.value:.1%} lost, "
        f"{slack:.1%} allowed"
        for name, value in figures(candidate).items()
        if not value.value >= then[name].value - slack
    ]
