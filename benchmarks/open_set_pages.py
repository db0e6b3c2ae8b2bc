"""The tables of `benchmarks.open_set_rules`, printed and as Markdown."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

FIGURES = ("right_first", "named_rightly", "named_wrongly", "strangers_named", "distractors_named",
           "named_rightly_at_known_threshold")  # fmt: skip
HEAD = (
    "| rule | right first | named rightly | named wrongly | strangers named | distractors named | "
    "named rightly, threshold known |"
)
THRESHOLD_HEAD = "| threshold | named rightly | strangers named | spread over samples | distractors named |"
THRESHOLD_FIGURES = ("named_rightly", "strangers_named", "strangers_named_spread", "distractors_named")
RULE_FIGURES = ("right_first", "named_rightly", "strangers_named", "distractors_named")
RULES_CAPTION = "Right person first / named rightly / strangers named / distractors named, %, mean over seeds."
THRESHOLDS_CAPTION = (
    "By the rule in bold: named rightly / strangers named (standard deviation over samples of one gallery) / "
    "distractors named, %."
)
PREFIX = "threshold: "
MARKER = "<!-- tables: written by python -m benchmarks.open_set_rules --markdown FILE -->"


def show(key: str, result: dict[str, Any], adopted: str) -> None:
    """Print the tables of one plan and recogniser."""
    print("\n".join(tables(key, result, adopted)), flush=True)


def write(results: dict[str, Any], adopted: str) -> str:
    """Return the tables of rules, thresholds and gallery sizes, with one column per recogniser and plan."""
    plans = {key: result for key, result in results.items() if "rules" in result}
    lines: list[str] = []
    if plans:
        lines += ["### Rules", "", RULES_CAPTION, "", *wide_table(plans, RULE_FIGURES, adopted, thresholds=False), ""]
        lines += ["### Thresholds", "", THRESHOLDS_CAPTION, ""]
        lines += wide_table(plans, RULE_FIGURES[1:], adopted, thresholds=True)
    for key, result in results.items():
        lines += list(size_table(key, result)) if "sizes" in result else []
    return "\n".join(lines) + "\n"


def update_page(page: Path, tables_text: str) -> None:
    """Replace the text after the marker line, or write a page with only the tables."""
    before = page.read_text().split(MARKER)[0] if page.exists() else ""
    page.write_text(f"{before}{MARKER}\n\n{tables_text}")


def wide_table(plans: dict[str, Any], figures: tuple[str, ...], adopted: str, *, thresholds: bool) -> Iterable[str]:
    heads = []
    for key, result in plans.items():
        faces = next(iter(result["rules"].values()))["faces"]["mean"]
        heads.append(f"{key}: {faces:,.0f} faces, {result['seeds']} seeds")
    yield "| | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for rule in next(iter(plans.values()))["rules"]:
        if rule.startswith(PREFIX) != thresholds:
            continue
        cells = [" / ".join(mean_of(result["rules"][rule], figure) for figure in figures) for result in plans.values()]
        name = f"**{rule}**" if rule == adopted else rule.removeprefix(PREFIX)
        yield f"| {name}{' searches' if thresholds else ''} | " + " | ".join(cells) + " |"


def mean_of(rule: dict[str, Any], figure: str) -> str:
    """Format a mean in percent, with its spread over samples if there is one."""
    mean = rule[figure]["mean"]
    text = f"{100 * mean:.{1 if mean > 0.1 else 2}f}"
    spread = rule.get(f"{figure}_spread", {}).get("mean")
    return text if not spread else f"{text} ({100 * spread:.2f})"


def tables(key: str, result: dict[str, Any], adopted: str) -> Iterable[str]:
    rules: dict[str, Any] = result["rules"]
    faces = next(iter(rules.values()))["faces"]["mean"]
    yield f"\n### {key}\n"
    yield f"{faces:,.0f} faces on average, {result['seeds']} seeds; %, in brackets the standard deviation over seeds.\n"
    yield HEAD
    yield "|---" * 7 + "|"
    for rule, figures in rules.items():
        if not rule.startswith(PREFIX):
            name = f"**{rule}**" if rule == adopted else rule
            yield f"| {name} | " + " | ".join(cell(figures[figure]) for figure in FIGURES) + " |"
    yield f"\nBy the rule in bold:\n\n{THRESHOLD_HEAD}\n" + "|---" * 5 + "|"
    for rule, figures in rules.items():
        if rule.startswith(PREFIX):
            cells = " | ".join(cell(figures[figure]) for figure in THRESHOLD_FIGURES)
            yield f"| {rule.removeprefix(PREFIX)} searches | {cells} |"


def cell(figure: dict[str, float | None]) -> str:
    mean, deviation = figure["mean"], figure["sd"]
    assert mean is not None
    decimals = 1 if mean > 0.1 else 2
    return f"{100 * mean:.{decimals}f}" + ("" if deviation is None else f" ({100 * deviation:.{decimals}f})")


def size_table(key: str, result: dict[str, Any]) -> Iterable[str]:
    """Return strangers / distractors named, by number of people when measured (rows) and when used (columns)."""
    rows: dict[str, dict[str, float]] = result["sizes"]
    columns = list(dict.fromkeys(name.split(" -> ")[1] for name in rows if "->" in name))
    yield f"\n### {key}\n"
    yield f"{result['seeds']} seeds; % of LFW strangers / of distractors named at nominal 1 %.\n"
    yield "| measured at, people | " + " | ".join(f"used at {column}" for column in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for size in columns:
        cells = [rows[f"{size} -> {column}"] for column in columns]
        cells = [f"{100 * row['strangers']:.2f} / {100 * row['distractors']:.2f}" for row in cells]
        yield f"| {size} | " + " | ".join(cells) + " |"
    pairs = [f"{100 * rows[f'pairs, {column}']['distractors']:.2f}" for column in columns]
    yield "| pairs, 1 - (1 - fmr)^N; distractors | " + " | ".join(pairs) + " |"
