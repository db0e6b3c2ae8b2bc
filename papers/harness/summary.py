"""Write the summary page: each learned result beside an unlearned baseline of the same size.

All figures are read from the JSON of the chapters. The page is `README.md` in the folder of the JSON.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.harness.pages import shown
from papers.harness.summary_rows import SECTIONS, FigureRef, SummaryRow, SummarySection
from papers.harness.table_types import Figure

BEGIN, END = "<!-- figures: begin, written by likeness reproduce --from-json -->", "<!-- figures: end -->"
NOT_MEASURED = "not measured"
PAIRED = re.compile(r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\], p [\d.e-]+")
Chapters = Mapping[str, Any]


@dataclass(frozen=True)
class BaselineGap:
    """The difference between a learned result and its baseline. paired: the text of a paired test, if there is one"""

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
        """Whether the 95 % intervals overlap, or one of them is unknown."""
        ends = (self.learned.low, self.learned.high, self.unlearned.low, self.unlearned.high)
        if any(math.isnan(end) for end in ends):
            return True
        return self.learned.low <= self.unlearned.high and self.unlearned.low <= self.learned.high


def write_figures(folder: Path) -> Path | None:
    """Write the tables of figures into the summary page, between its two markers, and return its path.

    Returns None, and writes nothing, if the page or its markers are missing, or if the JSON of a chapter or one of the
    rows is missing, as after a run of a single chapter or without the network.
    """
    page = folder / "README.md"
    names = {ref.chapter for section in SECTIONS for row in section.rows for ref in row.refs}
    if not page.exists() or not all((folder / f"{name}.json").exists() for name in names):
        return None
    text = page.read_text()
    if BEGIN not in text or END not in text:
        return None
    try:
        tables = figures({name: json.loads((folder / f"{name}.json").read_text()) for name in names})
    except KeyError:
        return None
    page.write_text(text.split(BEGIN)[0] + BEGIN + "\n" + tables + END + text.split(END)[1])
    return page


def figures(chapters: Chapters, sections: Sequence[SummarySection] = SECTIONS) -> str:
    """Return the tables as Markdown. Raises KeyError if a chapter lacks one of the rows."""
    return "".join(_section(chapters, section) for section in sections)


def compare(chapters: Chapters, row: SummaryRow) -> BaselineGap | None:
    """Compare a row with its baseline; None if no baseline of the same size was measured."""
    if row.unlearned is None:
        return None
    table = _table(chapters, row.learned)
    notes = [note for note in table["notes"] if row.note and note.startswith(row.note)]
    paired = next((note.split(f" {row.part}: ", 1)[-1] if row.part else note for note in notes), "")
    return BaselineGap(read(chapters, row.learned), read(chapters, row.unlearned), paired)


def read(chapters: Chapters, ref: FigureRef) -> Figure:
    """Read the figure that a reference names. Raises KeyError."""
    rows = {row["name"]: row for row in _table(chapters, ref)["rows"]}
    kept = rows[ref.row]["figures"][ref.column]
    numbers: dict[str, Any] = {name: math.nan if value is None else value for name, value in kept.items()}
    return Figure(**numbers)


def _table(chapters: Chapters, ref: FigureRef) -> Any:
    return {table["name"]: table for table in chapters[ref.chapter]["tables"]}[ref.table]


def _section(chapters: Chapters, section: SummarySection) -> str:
    lines = [
        f"\n**{section.title}**\n",
        "| | learned | unlearned, same size | learned less unlearned |",
        "|---|---|---|---|",
    ]
    for row in section.rows:
        gap = compare(chapters, row)
        beside = f"{_plain(gap.unlearned)} ({row.baseline})" if gap else row.baseline or NOT_MEASURED
        cells = [row.name, _plain(read(chapters, row.learned)), beside, str(gap) if gap else NOT_MEASURED]
        lines.append("| " + " | ".join(cells) + " |")
    if section.whole:
        whole = [f"{name} {_plain(read(chapters, ref))}" for name, ref in section.whole.items()]
        lines.append(f"\nUnlearned and whole: {'; '.join(whole)}.")
    return "\n".join(lines) + "\n"


def _plain(figure: Figure) -> str:
    return shown(Figure(figure.value, figure.low, figure.high))
