"""Draw the learning curves of `docs/research/methods.md`.

    python -m benchmarks.curves [--out docs/research/curves] [--people 240] [--only NAME ...]

Each method is fitted to synthetic faces (LBP, 5 photos per person, dim 16; two descriptors for methods that join
descriptors), so that anybody can repeat it. There is one SVG file per method: its loss, and its score on held-out
people if it holds people out.
"""

import argparse
from collections.abc import Iterable, Sequence
from math import isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from ml import registry
from ml.aligners.similarity import Similarity
from ml.embedders.base import TaskData, TrainingSet
from ml.model import Recipe
from ml.synthetic_faces import person, photograph
from ml.types import Spec

PHOTOS_PER_PERSON = 5
WIDTH, HEIGHT = 360, 190
LEFT, TOP, RIGHT, BOTTOM = 60, 26, 314, 158
COLOURS = {"loss": "#b4541a", "held_out": "#1f6f8b"}
WORDS = {"loss": "loss", "held_out": "people held out"}
SETTINGS: dict[str, Any] = {"dim": 16, "held_out": 0.2, "inner": 64}
JOINT = ("cosim_mass", "cosim_average")
Point = tuple[int, dict[str, float]]


def draw_faces(people: int, recipe: Recipe) -> TrainingSet:
    aligner, crops = Similarity(), []
    for who in range(people):
        for shot in range(PHOTOS_PER_PERSON):
            image, points = photograph(person(who), 1000 * who + shot, 160)
            crops.append(aligner.crops(image, points)["grey"])
    rows = recipe.describe({"grey": np.stack(crops)})
    who = np.repeat(np.arange(people), PHOTOS_PER_PERSON)
    task = TaskData("identity", np.arange(len(who)), who.astype(np.float64), who)
    return TrainingSet(rows, (task,), recipe.blocks)


def record_curve(name: str, data: TrainingSet) -> list[Point]:
    """Return the reports of a fit: (step, values)."""
    known = {o.name for o in registry.list_options("embedders", name)}
    embedder = registry.build("embedders", name, **{k: v for k, v in SETTINGS.items() if k in known})
    points: list[Point] = []
    embedder.fit(data, progress=lambda step, _, values: points.append((step, dict(values))))
    return points


def draw_svg(name: str, curve_points: Sequence[Point]) -> str:
    """Draw the curve as SVG, readable on light and dark backgrounds."""
    last = max((step for step, _ in curve_points), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff" rx="6"/>',
        f'<text x="{LEFT}" y="16" font-size="13" fill="#222">{name}</text>',
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}V{TOP}" fill="none" stroke="#999"/>',
        f'<text x="{(LEFT + RIGHT) // 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">step, of {last:,}</text>',
    ]
    for series, side in (("loss", "left"), ("held_out", "right")):
        points = [(step, v[series]) for step, v in curve_points if isfinite(v.get(series, float("nan")))]
        if len(points) > 1:
            parts += _line(points, last, series, side)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Sequence[tuple[int, float]], last: int, series: str, side: str) -> Iterable[str]:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    at = [
        (LEFT + (RIGHT - LEFT) * step / last, BOTTOM - (BOTTOM - TOP - 8) * (value - low) / span)
        for step, value in points
    ]
    colour, anchor, x = COLOURS[series], *(("end", LEFT - 4) if side == "left" else ("start", RIGHT + 4))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    for value, y in ((low, BOTTOM), (high, TOP + 12)):
        yield f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{_short(value)}</text>'
    word = (LEFT + 6, "start") if side == "left" else (RIGHT - 6, "end")
    yield f'<text x="{word[0]}" y="{TOP + 4}" text-anchor="{word[1]}" fill="{colour}">{WORDS[series]}</text>'


def _short(value: float) -> str:
    return f"{value:.{max(0, 2 - int(log10(max(abs(value), 1e-9)) // 1))}f}" if abs(value) < 1e4 else f"{value:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/research/curves"))
    parser.add_argument("--people", type=int, default=240)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    one = draw_faces(args.people, Recipe())
    two = draw_faces(args.people, Recipe((Spec("lbp"), Spec("sift"))))
    for name in args.only or registry.names("embedders"):
        points = record_curve(name, two if name in JOINT else one)
        if sum(1 for _, values in points if values) > 2:
            (args.out / f"{name}.svg").write_text(draw_svg(name, points))
            print(f"{name}: {len(points)} points, at the end {points[-1][1]}", flush=True)


if __name__ == "__main__":
    main()
