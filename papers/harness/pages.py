"""Write a results page from its JSON: verdicts by the current rule, Markdown, and plots whose curves the JSON keeps."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from papers.harness.pictures import draw, line_plot
from papers.harness.table_types import Curves, Figure, Row
from papers.harness.verdicts import fit_steps, judge

Json = dict[str, Any]
QUICK = (
    "**A quick look:** one draw, few settings, options as they come. The full run is what is judged on what was asked."
)
DEFAULTS: Mapping[str, Any] = {
    "verdict": None, "altered": "", "differences": [], "claim": "", "compared": [], "lower_is_better": [],
    "tolerance": 1.0,
}  # fmt: skip
"""The fields of a row that determine its verdict, besides figures and steps. The JSON omits these default values."""


def verdict_fields(row: Row) -> Json:
    """Return what the JSON stores of a row so that it can be judged again: `judged_by`, `fit_steps`, `verdict`, ..."""
    fields = {name: getattr(row, name) for name in DEFAULTS}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    judgement = judge(row)
    return {
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "cause": row.cause,
        "judged_by": {name: value for name, value in fields.items() if value != DEFAULTS[name]},
        "fit_steps": fit_steps(row),
    }


def row_of(kept: Json) -> Row:
    """Restore a row from its JSON, without the computations behind it."""
    figures = {column: _figure(one) for column, one in kept["figures"].items()}
    return Row(
        kept["name"], figures, kept["paper"], cause=kept["cause"], fit_steps=kept["fit_steps"], **kept["judged_by"]
    )


def judge_again(content: Json) -> Json:
    """Return the content of a results JSON with all verdicts recomputed."""
    tables = [
        {**table, "rows": [row | verdict_fields(row_of(row)) for row in table["rows"]]} for table in content["tables"]
    ]
    return {**content, "tables": tables}


def rewrite(path: Path) -> Path:
    """Recompute the verdicts of `<name>.json`, and write it, its page `<name>.md`, and the plots whose curves it keeps.

    Returns the page. Needs neither data nor stored results.
    """
    content = judge_again(json.loads(path.read_text()))
    save(path, content)
    for plot in (p for table in content["tables"] for p in table["plots"] if p.get("lines")):
        draw(line_plot(plot["name"], plot["alt"], Curves(**plot["lines"])), path.parent / f"{plot['name']}.svg")
    return path.with_suffix(".md")


def save(path: Path, content: Json) -> None:
    """Write the JSON, and the page beside it."""
    path.write_text(json.dumps(_without_nan(content), indent=1) + "\n")
    path.with_suffix(".md").write_text(page(content))


def page(content: Json) -> str:
    """Return the Markdown page of a results JSON."""
    head = f"# {content['title']}\n\n`{content['command']}`, {content['date']}, {content['machine']}"
    head += f", commit {content['commit']}.\n"
    if content.get("quick"):
        head += f"\n{QUICK}\n"
    if missing := content["missing"]:
        head += f"\n**Not whole:** {missing} results are not computed yet; tables that need any of them are left out.\n"
    return head + "".join(_table_page(table) for table in content["tables"])


def shown(figure: Figure) -> str:
    """Format a figure as `41.6 ± 1.3 [39.8, 43.2]`: ± SD over draws, [95 % interval]."""
    spread = "" if math.isnan(figure.sd) else f" ± {figure.sd:.1f}"
    interval = "" if math.isnan(figure.low) else f" [{figure.low:.1f}, {figure.high:.1f}]"
    return f"{figure.value:.1f}{spread}{interval}"


def _table_page(table: Json) -> str:
    rows = table["rows"]
    columns = ["", *(f"{c}: here (paper)" if any(c in r["paper"] for r in rows) else c for c in table["columns"])]
    lines = [f"\n## {table['title']}\n", table["header"] + "\n"]
    lines += ["| " + " | ".join([*columns, "verdict"]) + " |", "|" + "---|" * (len(columns) + 1)]
    for row in rows:
        cells = [_cell(row, column) for column in table["columns"]]
        lines.append("| " + " | ".join([row["name"], *cells, _verdict(row)]) + " |")
    lines += ["", *(f"* {note}" for note in table["notes"])]
    lines += [f"\n![{p['alt']}]({p['name']}.svg)" for p in table["plots"]]
    return "\n".join(lines) + "\n"


def _verdict(row: Json) -> str:
    why = "; ".join(part for part in (row["reason"], row["cause"]) if part)
    return f"{row['verdict']}: {why}" if why else str(row["verdict"])


def _cell(row: Json, column: str) -> str:
    kept, paper = row["figures"].get(column), row["paper"].get(column)
    here = "" if kept is None else shown(_figure(kept))
    return here + ("" if paper is None else f" ({paper:g})")


def _figure(kept: Json) -> Figure:
    numbers: Json = {name: math.nan if value is None else value for name, value in kept.items()}
    return Figure(**numbers)


def _without_nan(content: Any) -> Any:
    """Replace NaN, which JSON lacks, by null."""
    if isinstance(content, dict):
        return {k: _without_nan(v) for k, v in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(v) for v in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
