"""The table of `benchmarks.first_hour`: results and goals."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.first_hour_photos import Size
from ml.evaluation.intervals import over_draws

Results = dict[str, Any]
REACHED, STRETCH, MISSED, NOT_MEASURED = "reached", "stretch reached", "MISSED", "not measured"


@dataclass(frozen=True)
class PhaseGoal:
    """A goal. Rates are 0..1. more: whether greater is better; before: the value when the goal was set"""

    what: str
    phase: str
    figure: str
    before: str
    at_least: float
    stretch: float | None
    more: bool


RATES = (
    PhaseGoal("default installation, right person first", "seed/default", "right_first", "41 %", 0.97, 0.98, True),
    PhaseGoal("default decision: strangers named", "seed/default", "strangers_named", "80 %", 0.02, 0.01, False),
    PhaseGoal("default decision: queries named rightly", "seed/default", "named_rightly", "39 %", 0.84, 0.91, True),
    PhaseGoal("with the ONNX file: strangers named", "seed/onnx", "strangers_named", "71 %", 0.015, 0.01, False),
    PhaseGoal("with the ONNX file: queries named rightly", "seed/onnx", "named_rightly", "99 %", 0.96, 0.98, True),
    PhaseGoal("all of LFW, default: strangers named", "large/default", "strangers_named", "-", 0.02, 0.01, False),
    PhaseGoal(
        "all of LFW, with the ONNX file: strangers named", "large/onnx", "strangers_named", "99 %", 0.02, 0.01, False
    ),
    PhaseGoal("LBP alone: strangers named", "seed/lbp", "strangers_named", "27 to 80 %", 0.02, None, False),
)
BESIDE = (
    ("right_first", "right person first"),
    ("named_rightly", "named rightly"),
    ("named_wrongly", "named wrongly"),
    ("possible", "queries answered `possible`"),
    ("strangers_named_lfw", "strangers of LFW named"),
    ("strangers_named_distractors", "distractors named"),
    ("strangers_possible", "strangers answered `possible`"),
)


@dataclass(frozen=True)
class PhaseRow:
    """A row of the table. low, high: Student's 95 % interval over seeds, None with fewer than two seeds"""

    what: str
    before: str
    goal: str
    value: float | None
    low: float | None
    high: float | None
    seeds: int
    unit: str
    verdict: str


def rows(results: Results) -> Iterator[PhaseRow]:
    """Make a row for every goal, measured or not."""
    for goal in RATES:
        values = select(results, goal.phase, goal.figure)
        sign, rate = ("at least", "%") if goal.more else ("at most", "%")
        limits = f"{sign} {100 * goal.at_least:g} %" + (f", {100 * goal.stretch:g} %" if goal.stretch else "")
        yield make_row(goal.what, goal.before, limits, values, rate, judge(goal, values))
    commands = [float(len(result["commands"])) for result in phases(results, "seed/onnx")]
    verdict = judge(PhaseGoal("", "", "", "", 2, 1, False), commands)
    yield make_row("commands from an ONNX file to serving it", "8 steps", "at most 2, 1", commands, "", verdict)
    actions = [float(results["user"]["actions"])] if "user" in results else []
    verdict = judge(PhaseGoal("", "", "", "", 5, None, False), actions)
    yield make_row("a new user's actions to the first right match", "114 s + 3", "at most 5", actions, "", verdict)


def make_row(what: str, before: str, goal: str, values: list[float], unit: str, verdict: str) -> PhaseRow:
    if not values:
        return PhaseRow(what, before, goal, None, None, None, 0, unit, verdict)
    interval = over_draws(np.array(values))
    several = len(values) > 1
    return PhaseRow(what, before, goal, interval.value, interval.low if several else None,
               interval.high if several else None, len(values), unit, verdict)  # fmt: skip


def judge(goal: PhaseGoal, values: list[float]) -> str:
    """Judge the mean over seeds."""
    if not values:
        return NOT_MEASURED
    sign, mean = (1 if goal.more else -1), float(np.mean(values))
    if goal.stretch is not None and sign * mean >= sign * goal.stretch - 1e-12:
        return STRETCH
    return REACHED if sign * mean >= sign * goal.at_least - 1e-12 else MISSED


def phases(results: Results, kind: str) -> list[dict[str, Any]]:
    """Return the results of a kind of phase, such as `seed/onnx`, for every seed."""
    start, end = kind.split("/")
    names = [name for name in results if name.startswith(f"{start}-") and name.endswith(f"/{end}")]
    return [results[name] for name in sorted(names)]


def select(results: Results, kind: str, figure: str) -> list[float]:
    return [float(result[figure]) for result in phases(results, kind)]


def within_stated(results: Results, kind: str) -> tuple[int, int]:
    """Count the seeds whose rate of strangers named was in the interval stated by the service, and those with one."""
    stated = [r for r in phases(results, kind) if (r["threshold"] or {}).get("high") is not None]
    held = [r["threshold"]["low"] <= r["strangers_named"] <= r["threshold"]["high"] for r in stated]
    return sum(held), len(held)


def show(results: Results, size: Size, json_file: Path | None, markdown: Path | None) -> None:
    """Print the table; if files are given, write it and all phases."""
    table = Table("", "before", "goal, stretch goal", "measured", "seeds", "", title=describe(size))
    table_rows = list(rows(results))
    for row in table_rows:
        table.add_row(row.what, row.before, row.goal, format_value(row), str(row.seeds), row.verdict)
    Console().print(table)
    if json_file is not None:
        body = {"size": asdict(size), "table": [asdict(row) for row in table_rows], "phases": results}
        json_file.write_text(json.dumps(body, indent=1) + "\n")
    if markdown is not None:
        markdown.write_text(write_markdown(results, table_rows, size))


def describe(size: Size) -> str:
    return (
        f"{size.people} people of LFW, {size.queries} queries, strangers: {size.lfw_strangers} other people of LFW and "
        f"{size.distractors:,} of distractors-utkface; over HTTP"
    )


def format_value(row: PhaseRow) -> str:
    if row.value is None:
        return "-"
    scale, decimals = (100, 1) if row.unit else (1, 0)
    interval = "" if row.low is None or row.high is None or not row.unit else (
        f" [{scale * row.low:.1f}, {scale * row.high:.1f}]")  # fmt: skip
    return f"{scale * row.value:.{decimals}f}{interval} {row.unit}".rstrip()


def write_markdown(results: Results, table_rows: list[PhaseRow], size: Size) -> str:
    """Return the table of goals as Markdown, and a second table with further rates, one column per service."""
    lines = [f"{describe(size)}; mean of the seeds [95 % interval over seeds]", "",
             "| | before | goal, stretch goal | measured | seeds | |", "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [
        f"| {row.what} | {row.before} | {row.goal} | {format_value(row)} | {row.seeds} | {row.verdict} |"
        for row in table_rows
    ]
    kinds = [kind for kind in ("seed/default", "seed/onnx", "seed/lbp", "large/default", "large/onnx")
             if phases(results, kind)]  # fmt: skip
    lines += ["", "| % | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for figure, title in BESIDE:
        cells = [f"{100 * np.mean(select(results, kind, figure)):.1f}" for kind in kinds]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    faces = [f"{np.mean(select(results, kind, 'faces')):,.0f}" for kind in kinds]
    lines.append("| faces enrolled | " + " | ".join(faces) + " |")
    held = ["{} of {}".format(*within_stated(results, kind)) for kind in kinds]
    lines.append("| seeds whose strangers were named at a rate within the stated interval | " + " | ".join(held) + " |")
    return "\n".join(lines) + "\n"
