"""Compare an evaluation with an earlier one, query by query or fold by fold."""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import Invalid
from ml.evaluation.comparisons.paired_tests import compare, compare_folds

CALL_RANKS = (1, 10)


def compare_reports(now: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the difference of each figure, now less earlier: its value, interval, p and groups.

    Raises Invalid unless both were measured on the same queries or pairs.
    """
    return (
        _compare_queries(now["outcomes"], earlier.get("outcomes", []))
        if "outcomes" in now
        else _compare_folds_of(now, earlier)
    )


def _compare_queries(now: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    if [_identify_queries(d) for d in now] != [_identify_queries(d) for d in earlier]:
        raise _make_incomparable("the same queries of the same draws, in a gallery of the same size")
    people = _join_draws(now, "people")
    figures = {"map": (_join_draws(now, "map"), _join_draws(earlier, "map"))}
    for k in CALL_RANKS:
        figures[f"1-call@{k}"] = (
            _is_within(_join_draws(now, "first"), k),
            _is_within(_join_draws(earlier, "first"), k),
        )
    differences = {}
    for name, (a, b) in figures.items():
        comparison = compare(a, b, people)
        differences[name] = asdict(comparison.difference) | {"p": comparison.p, "groups": comparison.groups}
    return differences


def _compare_folds_of(now: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Compare the accuracy of the folds. p: of an exact permutation test that swaps whole folds.

    The interval and the other tests are those of `ml.evaluation.comparisons.paired_tests`.
    """
    draws, earlier_draws = now["draws"], earlier.get("draws", [])
    if [d["fingerprint"] for d in draws] != [d.get("fingerprint") for d in earlier_draws]:
        raise _make_incomparable("the same pairs of the same folds")
    a, b = (np.array([d["accuracy"] for d in draws]) for draws in (draws, earlier_draws))
    comparison = compare_folds(a, b)
    tests = {
        "p": compare(a, b).p,
        "t": comparison.t,
        "wilcoxon": comparison.wilcoxon,
        "corrected_t": comparison.corrected,
    }
    return {"accuracy": asdict(comparison.difference) | tests | {"groups": comparison.folds}}


def _identify_queries(draw: dict[str, Any]) -> tuple[Any, ...]:
    return draw["name"], draw["gallery"], draw["faces"]


def _join_draws(draws: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([np.nan if v is None else v for draw in draws for v in draw[name]], np.float64)


def _is_within(first: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    return np.where(np.isfinite(first), first <= k, np.nan)


def _make_incomparable(what: str) -> Invalid:
    return Invalid(f"`against` was not measured on {what}: measure both again", code="NothingToEvaluate")
