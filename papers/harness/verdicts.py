"""The rule by which every row of a results table gets its verdict.

Checked in this order; the first that applies decides:

1. nothing learned: a fit behind the row took no step, whatever its figure.
2. no difference shown: a difference is exactly 0, has no interval, or its interval covers 0.
3. not possible here: the paper's data or network cannot be had, so the figures are not compared.
   A table may also say "ours" of what cannot be compared fairly.
4. altered: the method is not the one that the paper prints. It never reproduces anything.
5. A difference: reproduced (the interval holds the paper's figure), same sign, or other sign.
6. A figure: reproduced (the paper's figure lies in the interval, or within the tolerance), better, worse, or mixed.
   Without a figure of the paper in the row: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from papers.harness.table_types import Figure, Row

Verdict = Literal[
    "nothing learned", "not possible here", "no difference shown", "ours", "altered", "reproduced", "same sign",
    "other sign", "better", "worse", "mixed",
]  # fmt: skip
NO_DIFFERENCE: Literal["no difference shown"] = "no difference shown"
NO_STEP = "no step was taken, so this is the start and not a fit"
SIDE_NAMES = {1: "above", 0: "at", -1: "below"}


@dataclass(frozen=True)
class ReasonedVerdict:
    """A verdict and its reason, which is empty if the verdict needs none."""

    verdict: Verdict
    reason: str = ""


def judge(row: Row) -> ReasonedVerdict:
    """Judge a row by the rule of this module."""
    if 0 in fit_steps(row):
        return ReasonedVerdict("nothing learned", NO_STEP)
    unclear = [column for column in row.differences if side_of_zero(row.figures[column]) == 0]
    if unclear:
        where = "" if len(unclear) == len(row.differences) else f"in {', '.join(unclear)}"
        return ReasonedVerdict(NO_DIFFERENCE, _join_parts(where, row.altered and f"altered: {row.altered}"))
    if row.verdict is not None:
        return ReasonedVerdict(row.verdict)
    if row.differences:
        return _judge_difference(row)
    if row.altered:
        return ReasonedVerdict("altered", _join_parts(row.altered, _beside_paper(row)))
    return _judge_figures(row, compare_with_paper(row))


def get_verdict(row: Row) -> Verdict:
    """Return the verdict of a row without its reason."""
    return judge(row).verdict


def side_of_zero(difference: Figure) -> int:
    """Return 1 if the interval lies above 0, -1 if below, 0 if it covers 0, or if the difference is 0 or has none."""
    if difference.value == 0:
        return 0
    return int(difference.low > 0) - int(difference.high < 0)


def compare_with_paper(row: Row) -> dict[str, int]:
    """Return, for each compared column, 0 if the figure equals the paper's, 1 if it is better, -1 if it is worse."""
    columns = [c for c in row.compared or row.paper if c in row.paper and c in row.figures]
    return {c: _sign(row, row.figures[c], row.paper[c], c in row.lower_is_better) for c in columns}


def fit_steps(row: Row) -> list[int]:
    """Return the numbers of steps of the iterative fits behind a row, each once; empty if no fit counts its steps."""
    if row.fit_steps is not None:
        return list(row.fit_steps)
    return list(dict.fromkeys(steps for computation in row.computations for steps in _steps_in(computation.key)))


def _steps_in(key: Any) -> list[int]:
    """Return the `steps` of all `options` in a key, which may contain the keys of other computations."""
    if isinstance(key, Mapping):
        own = key.get("options")
        steps = [own["steps"]] if isinstance(own, Mapping) and "steps" in own else []
        return steps + [n for name, value in key.items() if name != "options" for n in _steps_in(value)]
    if isinstance(key, Sequence) and not isinstance(key, str):
        return [n for value in key for n in _steps_in(value)]
    return []


def _judge_difference(row: Row) -> ReasonedVerdict:
    """Judge differences whose intervals all exclude 0."""
    sides = {side_of_zero(row.figures[column]) for column in row.differences}
    if len(sides) > 1:
        return ReasonedVerdict("mixed", "not of one sign")
    [side] = sides
    here = f"{SIDE_NAMES[side]} 0"
    if row.altered:
        return ReasonedVerdict("altered", _join_parts(row.altered, here))
    printed = [(row.figures[c], row.paper[c]) for c in row.differences if c in row.paper]
    if not printed:
        if not row.claim:
            return ReasonedVerdict("ours", here)
        return ReasonedVerdict(
            "same sign" if SIDE_NAMES[side] == row.claim else "other sign", f"{here}, the paper: {row.claim} 0"
        )
    if all(figure.low <= paper <= figure.high for figure, paper in printed):
        return ReasonedVerdict("reproduced")
    if all(np.sign(paper) == side for _, paper in printed):
        less = all(abs(figure.value) < abs(paper) for figure, paper in printed)
        return ReasonedVerdict("same sign", f"{here}, by {'less' if less else 'more'} than printed")
    return ReasonedVerdict("other sign", here)


def _judge_figures(row: Row, signs: Mapping[str, int]) -> ReasonedVerdict:
    if not signs:
        return ReasonedVerdict("ours")
    distinct = set(signs.values())
    if len(distinct) > 1:
        return ReasonedVerdict(
            "mixed", "; ".join(f"{name} at {_columns(signs, s)}" for s, name in VERDICT_NAMES.items() if s in distinct)
        )
    [sign] = distinct
    return ReasonedVerdict(VERDICT_NAMES[sign])


VERDICT_NAMES: Mapping[int, Literal["better", "reproduced", "worse"]] = {1: "better", 0: "reproduced", -1: "worse"}


def _columns(signs: Mapping[str, int], sign: int) -> str:
    return ", ".join(column for column, one in signs.items() if one == sign)


def _sign(row: Row, figure: Figure, paper: float, lower_is_better: bool) -> int:
    if abs(figure.value - paper) <= row.tolerance or figure.low <= paper <= figure.high:
        return 0
    return 1 if (figure.value > paper) != lower_is_better else -1


def _beside_paper(row: Row) -> str:
    """Say on which side of the printed figures those of an altered method lie. This is not a verdict."""
    signs = set(compare_with_paper(replace(row, lower_is_better=())).values())
    if not signs:
        return ""
    words = {1: "above", 0: "level with", -1: "below"}
    return f"{words[signs.pop()] if len(signs) == 1 else 'partly level with'} the printed figure"


def _join_parts(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
