"""Draw a map as SVG: a grid of counts in grey, and faces as points coloured by group. No photos."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log

from ml.evaluation.plots import COLOURS

SIZE = 800
MARGIN = 40
LEGEND_WIDTH = 240
LEGEND_LINE = 18
OTHER_COLOUR = "#9ca3af"
RADIUS = 2.5
MAX_SHADE = 0.45
"""Opacity of the fullest cell."""


@dataclass(frozen=True)
class MapPicture:
    """What a picture shows.

    window: x_min, x_max, y_min, y_max; title, note: lines above and below the map
    points: x, y and group of each face; a group of None is drawn in grey, without an entry in the legend
    counts: rows of a grid over the window, the lowest y first; empty for none
    """

    window: tuple[float, float, float, float]
    points: Sequence[tuple[float, float, str | None]]
    counts: Sequence[Sequence[int]] = ()
    title: str = ""
    note: str = ""

    def to_svg(self) -> str:
        """Return the picture as a document of its own. The largest groups get a colour, all others share grey."""
        colours = self._choose_colours()
        width, height = SIZE + 2 * MARGIN + LEGEND_WIDTH, SIZE + 2 * MARGIN
        ordered = sorted(self.points, key=lambda point: point[2] in colours)  # coloured points lie above grey ones
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="13"><rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{MARGIN}" y="{MARGIN - 14}" font-size="16">{escape(self.title)}</text>',
            *self._draw_cells(),
            *(self._draw_point(x, y, colours.get(group or "", OTHER_COLOUR)) for x, y, group in ordered),
            *self._draw_legend(colours),
            f'<text x="{MARGIN}" y="{height - 12}" fill="#6b7280">{escape(self.note)}</text></svg>',
        ]
        return "\n".join(parts)

    def _choose_colours(self) -> dict[str, str]:
        sizes = Counter(group for _, _, group in self.points if group is not None)
        largest = sorted(sizes, key=lambda group: (-sizes[group], group))[: len(COLOURS)]
        return dict(zip(largest, COLOURS, strict=False))

    def _project(self, x: float, y: float) -> tuple[float, float]:
        x_min, x_max, y_min, y_max = self.window
        scale = SIZE / (max(x_max - x_min, y_max - y_min) or 1.0)
        return MARGIN + (x - x_min) * scale, MARGIN + SIZE - (y - y_min) * scale

    def _draw_cells(self) -> list[str]:
        fullest = max((count for row in self.counts for count in row), default=0)
        x_min, x_max, y_min, y_max = self.window
        rows = len(self.counts)
        cells = []
        for j, row in enumerate(self.counts):
            for i, count in enumerate(row):
                if not count:
                    continue
                left, bottom = self._project(x_min + (x_max - x_min) * i / len(row), y_min + (y_max - y_min) * j / rows)
                right, top = self._project(
                    x_min + (x_max - x_min) * (i + 1) / len(row), y_min + (y_max - y_min) * (j + 1) / rows
                )
                shade = MAX_SHADE * log(1 + count) / log(1 + fullest)
                cells.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
                    f'fill-opacity="{shade:.3f}"/>'
                )
        return cells

    def _draw_point(self, x: float, y: float, colour: str) -> str:
        across, down = self._project(x, y)
        return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{RADIUS}" fill="{colour}" fill-opacity="0.8"/>'

    def _draw_legend(self, colours: dict[str, str]) -> list[str]:
        left = SIZE + 2 * MARGIN
        lines = []
        for number, (group, colour) in enumerate(colours.items()):
            down = MARGIN + LEGEND_LINE * number
            lines.append(
                f'<circle cx="{left}" cy="{down}" r="5" fill="{colour}"/>'
                f'<text x="{left + 12}" y="{down + 4}">{escape(group)}</text>'
            )
        return lines
