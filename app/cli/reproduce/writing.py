"""A chapter's tables as JSON, Markdown and pictures."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli.reproduce.plan import Figure, Plot, Row, Table, judged
from app.cli.reproduce.store import NotThere, Store, stamp

LINE = 120
QUICK = (
    "**A quick look:** one draw, few settings, options as they come. The full run is what is judged on what was asked."
)


def those_there(*makes: Callable[[], Table]) -> list[Table]:
    """The tables all of whose results were computed."""
    made = []
    for make in makes:
        with suppress(NotThere):
            made.append(make())
    return made


def write(
    folder: Path, name: str, title: str, command: str, tables: Sequence[Table], store: Store, missing: int = 0,
    *, quick: bool = False,
) -> Path:  # fmt: skip
    """`<name>.json`, `<name>.md`, and an `.svg` a plot. Returns the page.

    missing: how many results are not there; the tables that need them are left out. quick: it says that it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {"title": title, "command": command, **stamp()}
    content = {**told, "missing": missing, "tables": [_table_json(t, store) for t in tables]}
    (folder / f"{name}.json").write_text(json.dumps(_plain(content), indent=1) + "\n")
    for table in tables:
        for plot in table.plots:
            _draw(plot, folder / f"{plot.name}.svg")
    page = folder / f"{name}.md"
    head = f"# {title}\n\n`{command}`, {told['date']}, {told['machine']}, commit {told['commit']}.\n"
    if quick:
        head += f"\n{QUICK}\n"
    if missing:
        head += f"\n**Not whole:** {missing} results are not computed yet; tables that need any of them are left out.\n"
    page.write_text(head + "".join(_table_page(t) for t in tables))
    return page


def _table_json(table: Table, store: Store) -> dict[str, Any]:
    rows = [_row_json(r, store) for r in table.rows]
    return {
        "name": table.name, "title": table.title, "header": table.header, "notes": list(table.notes), "rows": rows,
        "plots": [f"{p.name}.svg" for p in table.plots],
    }  # fmt: skip


def _row_json(row: Row, store: Store) -> dict[str, Any]:
    results = [store.get(w) for w in row.works]
    return {
        "name": row.name,
        "figures": {column: asdict(f) for column, f in row.figures.items()},
        "paper": dict(row.paper),
        "verdict": judged(row),
        "cause": row.cause,
        "about": dict(row.about),
        "works": {"count": len(row.works), **_in_common([w.key for w in row.works])},
        "commits": sorted({r.facts["commit"] for r in results}),
        "dates": sorted({r.facts["date"] for r in results}),
        "seconds": sum(r.facts["seconds"] for r in results),
    }


def _in_common(keys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What they say, each thing once; a list of what they say where they differ."""
    told: dict[str, list[Any]] = {}
    for key in keys:
        for name, value in key.items():
            seen = told.setdefault(name, [])
            if value not in seen:
                seen.append(value)
    return {name: seen[0] if len(seen) == 1 else seen for name, seen in told.items()}


def _table_page(table: Table) -> str:
    columns = ["", *(f"{c}: here (paper)" if any(c in r.paper for r in table.rows) else c for c in table.columns)]
    lines = [f"\n## {table.title}\n", table.header + "\n"]
    lines += ["| " + " | ".join([*columns, "verdict"]) + " |", "|" + "---|" * (len(columns) + 1)]
    for row in table.rows:
        cells = [_cell(row, column) for column in table.columns]
        verdict = judged(row) + (f": {row.cause}" if row.cause else "")
        lines.append("| " + " | ".join([row.name, *cells, verdict]) + " |")
    lines += ["", *(f"* {note}" for note in table.notes)]
    lines += [f"\n![{p.alt}]({p.name}.svg)" for p in table.plots]
    return "\n".join(lines) + "\n"


def _cell(row: Row, column: str) -> str:
    figure, paper = row.figures.get(column), row.paper.get(column)
    here = "" if figure is None else shown(figure)
    return here + ("" if paper is None else f" ({paper:g})")


def shown(figure: Figure) -> str:
    """`41.6 ± 1.3 [39.8, 43.2]`: ± over draws, [95 %]."""
    spread = "" if math.isnan(figure.sd) else f" ± {figure.sd:.1f}"
    interval = "" if math.isnan(figure.low) else f" [{figure.low:.1f}, {figure.high:.1f}]"
    return f"{figure.value:.1f}{spread}{interval}"


def _plain(found: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(found, dict):
        return {k: _plain(v) for k, v in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(v) for v in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _draw(plot: Plot, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "likeness", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot

    size = (5.5 * plot.columns, 3.8 * plot.rows)
    figure, axes = pyplot.subplots(plot.rows, plot.columns, figsize=size, layout="constrained")
    plot.draw(axes)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
