"""An evaluation beside an earlier one, query by query or fold by fold."""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import Invalid
from ml.evaluation.comparisons.paired_tests import compare, compare_folds

CALLS = (1, 10)


def compared(now: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Now less then, of two reports: of each figure its value, interval, p and groups. Raises Invalid unless both were
    measured on the same."""
    return _by_query(now["outcomes"], then.get("outcomes", [])) if "outcomes" in now else _by_fold(now, then)


def _by_query(now: list[dict[str, Any]], then: list[dict[str, Any]]) -> dict[str, Any]:
    if [_asked(d) for d in now] != [_asked(d) for d in then]:
        raise _other("the same queries of the same draws, in a gallery of the same size")
    people = _all(now, "people")
    figures = {"map": (_all(now, "map"), _all(then, "map"))}
    for k in CALLS:
        figures[f"1-call@{k}"] = (_within(_all(now, "first"), k), _within(_all(then, "first"), k))
    told = {}
    for name, (a, b) in figures.items():
        found = compare(a, b, people)
        told[name] = asdict(found.difference) | {"p": found.p, "groups": found.groups}
    return told


def _by_fold(now: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """p: folds swapped whole, exactly; the interval and the other tests: see
    `ml.evaluation.comparisons.paired_tests`."""
    ours, theirs = now["draws"], then.get("draws", [])
    if [d["fingerprint"] for d in ours] != [d.get("fingerprint") for d in theirs]:
        raise _other("the same pairs of the same folds")
    a, b = (np.array([d["accuracy"] for d in draws]) for draws in (ours, theirs))
    found = compare_folds(a, b)
    tests = {"p": compare(a, b).p, "t": found.t, "wilcoxon": found.wilcoxon, "corrected_t": found.corrected}
    return {"accuracy": asdict(found.difference) | tests | {"groups": found.folds}}


def _asked(draw: dict[str, Any]) -> tuple[Any, ...]:
    return draw["name"], draw["gallery"], draw["faces"]


def _all(draws: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([np.nan if v is None else v for draw in draws for v in draw[name]], np.float64)


def _within(first: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    return np.where(np.isfinite(first), first <= k, np.nan)


def _other(what: str) -> Invalid:
    return Invalid(f"`against` was not measured on {what}: measure both anew", code="NothingToEvaluate")
