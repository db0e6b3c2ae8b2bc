"""Draw the rates of a growing gallery as an SVG file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ml.evaluation.plots import BAND_OPACITY, COLOURS

Points = Sequence[Mapping[str, Any]]

WIDTH, HEIGHT, LEFT, TOP, GAP = 720, 300, 64, 36, 56
MIN_SHARE = 1e-4
PANELS = (
    ("strangers named", ("strangers_named", "distractors_named"), True),
    ("people found", ("people_found", "found_at_kept"), False),
)
NAMES = {
    "strangers_named": "strangers",
    "distractors_named": "distractors",
    "people_found": "at today's threshold",
    "found_at_kept": "at a threshold that keeps the rate",
}


def draw_growth(points: Points, fpir: float) -> str:
    """Return an SVG of strangers named (logarithmic) and people found, by number of faces (logarithmic).

    points: as `GrowthPoint`, with shares {"value", "low", "high"} or None; measured points are dots
    """
    height = 2 * HEIGHT + GAP + TOP + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 40}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>A growing gallery, threshold for {100 * fpir:g} % of strangers</title>'
        '<rect width="100%" height="100%" fill="white"/>'
    ]
    for row, (title, fields, is_log) in enumerate(PANELS):
        parts += _draw_panel(points, title, fields, is_log, TOP + row * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_panel(points: Points, title: str, fields: Sequence[str], is_log: bool, top: float) -> Iterator[str]:
    ends = [p[f][end] for p in points for f in fields if p[f] for end in ("low", "high")]
    smallest, largest = (max(MIN_SHARE, min(ends, default=0.0)), max(ends, default=1.0)) if is_log else (0.0, 1.0)
    sizes = [max(1, p["faces"]) for p in points]

    def across(faces: float) -> float:
        return LEFT + (WIDTH - LEFT) * float(np.log(faces / sizes[0]) / np.log(sizes[-1] / sizes[0]))

    def down(share: float) -> float:
        if not is_log:
            return top + HEIGHT * (1 - share)
        part = np.log(max(share, smallest) / smallest) / max(1e-9, np.log(largest / smallest))
        return top + HEIGHT * (1 - float(part))

    yield f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{title}</text>'
    yield f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{HEIGHT}" fill="none" stroke="#94a3b8"/>'
    for size in sizes[:: max(1, len(sizes) // 6)]:
        yield f'<text x="{across(size):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{size:,}</text>'
    for share in _list_ticks(smallest, largest, is_log):
        y = down(share)
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:g} %</text>'
        yield f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
    for number, field in enumerate(fields):
        shown = [(across(size), p[field], p["is_measured"]) for size, p in zip(sizes, points, strict=True) if p[field]]
        if shown:
            yield from _draw_curve([(x, {k: down(v) for k, v in share.items()}, m) for x, share, m in shown], number)
            yield (
                f'<text x="{WIDTH - 8}" y="{top + 18 + 16 * number}" text-anchor="end" fill="{COLOURS[number]}">'
                f"{NAMES[field]}</text>"
            )


def _draw_curve(shown: Sequence[tuple[float, Mapping[str, float], bool]], number: int) -> Iterator[str]:
    """Draw the band of the intervals, the curve, and dots where it was measured. shown: x, heights, is measured"""
    around = [(x, y["high"]) for x, y, _ in shown] + [(x, y["low"]) for x, y, _ in reversed(shown)]
    colour = COLOURS[number]
    yield f'<polygon points="{_join(around)}" fill="{colour}" opacity="{BAND_OPACITY}"/>'
    yield f'<polyline points="{_join((x, y["value"]) for x, y, _ in shown)}" fill="none" stroke="{colour}"/>'
    for x, y, is_measured in shown:
        if is_measured:
            yield f'<circle cx="{x:.1f}" cy="{y["value"]:.1f}" r="3.5" fill="{colour}"/>'


def _list_ticks(smallest: float, largest: float, is_log: bool) -> Sequence[float]:
    if not is_log:
        return (0.0, 0.25, 0.5, 0.75, 1.0)
    ticks = [m * 10.0**power for power in range(-4, 1) for m in (1, 3)]
    return [tick for tick in ticks if smallest <= tick <= largest]


def _join(corners: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
