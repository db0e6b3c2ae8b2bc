"""Write the tables of a chapter as JSON, Markdown and plots."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from papers.harness import pages
from papers.harness.pictures import draw
from papers.harness.result_store import ResultMissing, ResultStore, stamp
from papers.harness.table_types import Plot, Row, Table


def make_available_tables(*makes: Callable[[], Table]) -> list[Table]:
    """Make the tables whose results have all been computed; leave out the others."""
    made = []
    for make in makes:
        with suppress(ResultMissing):
            made.append(make())
    return made


def write_chapter(
    folder: Path, name: str, title: str, command: str, tables: Sequence[Table], store: ResultStore, missing: int = 0,
    *, quick: bool = False,
) -> Path:  # fmt: skip
    """Write `<name>.json`, `<name>.md` and an `.svg` file for each plot. Returns the page, which is made from the JSON.

    missing: number of results that are not computed; tables that need them are left out
    quick: whether to mark the page as a quick run
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "title": title, "command": command, **stamp(), "quick": quick, "missing": missing,
        "tables": [_table_json(t, store) for t in tables],
    }  # fmt: skip
    pages.save(folder / f"{name}.json", content)
    for table in tables:
        for plot in table.plots:
            draw(plot, folder / f"{plot.name}.svg")
    return folder / f"{name}.md"


def _table_json(table: Table, store: ResultStore) -> dict[str, Any]:
    rows = [_row_json(r, store) for r in table.rows]
    return {
        "name": table.name, "title": table.title, "header": table.header, "columns": list(table.columns),
        "notes": list(table.notes), "rows": rows, "plots": [_plot_json(p) for p in table.plots],
    }  # fmt: skip


def _plot_json(plot: Plot) -> dict[str, Any]:
    kept = {"name": plot.name, "alt": plot.alt}
    return kept if plot.lines is None else {**kept, "lines": asdict(plot.lines)}


def _row_json(row: Row, store: ResultStore) -> dict[str, Any]:
    results = [store.get(w) for w in row.computations]
    return {
        "name": row.name,
        "figures": {column: asdict(f) for column, f in row.figures.items()},
        "paper": dict(row.paper),
        **pages.verdict_fields(row),
        "about": dict(row.about),
        "works": {"count": len(row.computations), **_in_common([w.key for w in row.computations])},
        "commits": sorted({r.record["commit"] for r in results}),
        "dates": sorted({r.record["date"] for r in results}),
        "seconds": sum(r.record["seconds"] for r in results),
    }


def _in_common(keys: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several keys: one value for each name, or a list of values if they differ."""
    values: dict[str, list[Any]] = {}
    for key in keys:
        for name, value in key.items():
            seen = values.setdefault(name, [])
            if value not in seen:
                seen.append(value)
    return {name: seen[0] if len(seen) == 1 else seen for name, seen in values.items()}
