"""The figures of the reader's page: what was learned, beside an unlearned baseline of the same size, in one row.

Read from the JSON of the chapters, so that no figure is typed. The page is `README.md` in the folder of the JSON.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.reproduce.pages import shown
from app.cli.reproduce.plan import Figure
from app.cli.reproduce.summary_rows import SECTIONS, FigureRef, SummaryRow, SummarySection

BEGIN, END = "<!-- figures: begin, written by likeness reproduce --from-json -->", "<!-- figures: end -->"
NOT_MEASURED = "not measured"
PAIRED = re.compile(r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\], p [\d.e-]+")
Chapters = Mapping[str, Any]


@dataclass(frozen=True)
class BaselineGap:
    """Learned less unlearned. paired: the words of a paired test where the chapter has one."""

    learned: Figure
    unlearned: Figure
    paired: str = ""

    def __str__(self) -> str:
        if match := PAIRED.search(self.paired):
            low, high = float(match[2]), float(match[3])
            return match[0] + (": no difference shown" if low <= 0 <= high else "")
        gap = f"{self.learned.value - self.unlearned.value:+.1f}"
        return f"{gap} (unpaired; the intervals {'overlap' if self.overlap else 'lie apart'})"

    @property
    def overlap(self) -> bool:
        """Whether the 95 % intervals overlap, or one of them is not known."""
        ends = (self.learned.low, self.learned.high, self.unlearned.low, self.unlearned.high)
        if any(math.isnan(end) for end in ends):
            return True
        return self.learned.low <= self.unlearned.high and self.unlearned.low <= self.learned.high


def write_figures(folder: Path) -> Path | None:
    """Writes the tables of figures into the reader's page, between its two marks. None where there is no such page, or
    the JSON of a chapter is missing."""
    page = folder / "README.md"
    names = {cell.chapter for section in SECTIONS for line in section.lines for cell in line.cells}
    if not page.exists() or not all((folder / f"{name}.json").exists() for name in names):
        return None
    chapters = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + "\n" + figures(chapters) + END + rest.split(END)[1])
    return page


def figures(chapters: Chapters, sections: Sequence[SummarySection] = SECTIONS) -> str:
    """The tables as Markdown. Raises KeyError where a chapter lacks a row that is named here."""
    return "".join(_section(chapters, section) for section in sections)


def compare(chapters: Chapters, line: SummaryRow) -> BaselineGap | None:
    """None where no baseline of the same size was measured."""
    if line.unlearned is None:
        return None
    table = _table(chapters, line.learned)
    notes = [note for note in table["notes"] if line.note and note.startswith(line.note)]
    paired = next((note.split(f" {line.part}: ", 1)[-1] if line.part else note for note in notes), "")
    return BaselineGap(read(chapters, line.learned), read(chapters, line.unlearned), paired)


def read(chapters: Chapters, cell: FigureRef) -> Figure:
    """The figure of a cell. Raises KeyError."""
    rows = {row["name"]: row for row in _table(chapters, cell)["rows"]}
    kept = rows[cell.row]["figures"][cell.column]
    numbers: dict[str, Any] = {name: math.nan if value is None else value for name, value in kept.items()}
    return Figure(**numbers)


def _table(chapters: Chapters, cell: FigureRef) -> Any:
    return {table["name"]: table for table in chapters[cell.chapter]["tables"]}[cell.table]


def _section(chapters: Chapters, section: SummarySection) -> str:
    lines = [
        f"\n**{section.title}**\n",
        "| | learned | unlearned, same size | learned less unlearned |",
        "|---|---|---|---|",
    ]
    for line in section.lines:
        found = compare(chapters, line)
        beside = f"{_plain(found.unlearned)} ({line.baseline})" if found else line.baseline or NOT_MEASURED
        cells = [line.name, _plain(read(chapters, line.learned)), beside, str(found) if found else NOT_MEASURED]
        lines.append("| " + " | ".join(cells) + " |")
    if section.whole:
        told = [f"{name} {_plain(read(chapters, cell))}" for name, cell in section.whole.items()]
        lines.append(f"\nUnlearned and whole: {'; '.join(told)}.")
    return "\n".join(lines) + "\n"


def _plain(figure: Figure) -> str:
    return shown(Figure(figure.value, figure.low, figure.high))
