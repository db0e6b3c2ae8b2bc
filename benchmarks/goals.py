"""Compare the results of the benchmarks with their goals."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class SpeedGoal:
    """A goal: `value` should be at most `limit`. value: None if the library for comparison is not installed"""

    what: str
    value: float | None
    limit: float
    unit: str
    beside: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "skipped"
        return "reached" if self.value <= self.limit else "MISSED"


Figures = Any


def lbp(figures: Figures) -> Iterator[SpeedGoal]:
    ms, over = figures["ms"], figures["over_ours"]
    yield SpeedGoal("LBP", ms["ours"], 0.4, "ms a face", f"scikit-image {ms['scikit_image']:.2f} ms")
    beside = 1 / over["vlfeat"] if "vlfeat" in over else None
    yield SpeedGoal(
        "LBP beside VLFeat's C", beside, 1.3, "times its time", "" if beside else "libvlfeat1 is not installed"
    )


def fisher(figures: Figures) -> Iterator[SpeedGoal]:
    ms = figures["milliseconds"]
    yield SpeedGoal("dense SIFT and Fisher vector", ms["ours"], 55, "ms a face")
    for name, value in ms.items():
        if name != "ours":
            yield SpeedGoal(f"the same, beside {name}", ms["ours"] / value, 0.5, "of its time", f"{value:.0f} ms")
    for name in figures["missing"]:
        yield SpeedGoal(f"the same, beside {name}", None, 0.5, "of its time", "not installed")


def gmm(figures: Figures) -> Iterator[SpeedGoal]:
    for name, row in figures.items():
        yield SpeedGoal(f"GMM, {name}", row["ours_s"], 0.5, "s", f"scikit-learn {row['scikit_learn_s']:.2f} s")


def manifolds(figures: Figures) -> Iterator[SpeedGoal]:
    for row in figures:
        for layer in ("qconv", "stiefel"):
            what = f"{layer} over the plain layer: {row['of']}, batch {row['batch']}"
            yield SpeedGoal(what, row[layer], 3, "% more")


def learning(figures: Figures) -> Iterator[SpeedGoal]:
    alone = f"pair by pair, a step at each, {figures['pair_by_pair_s'] / 60:.0f} min"
    what = f"CP-mtML, {figures['updates']:,} pairs, {figures['numbers']:,} -> 64"
    yield SpeedGoal(what, figures["cpmtml_s"] / 60, 2 * figures["updates"] / 1_000_000, "min", alone)
    yield SpeedGoal("CP-mtML over stML", figures["cpmtml_s"] / figures["stml_s"], 2, "times its time")
    yield SpeedGoal("LDML d=32", figures["ldml_s"], 60, "s")
    yield SpeedGoal("CLML k=16, d=32", figures["clml_s"] / 60, 5, "min")
    yield SpeedGoal("CLML, one query", figures["clml_query_ms"], 2, "ms")
    yield SpeedGoal("CLML, a face of 1,000", figures["clml_batch_ms"], 0.3, "ms")


READERS: dict[str, Callable[[Figures], Iterator[SpeedGoal]]] = {
    "lbp": lbp, "fisher": fisher, "gmm": gmm, "manifolds": manifolds, "learning": learning,
}  # fmt: skip


def show(folder: Path) -> None:
    """Print the goals from the JSON files of the benchmarks in a folder, and write `goals.json` beside them."""
    goals = []
    for name, read in READERS.items():
        if (folder / f"{name}.json").is_file():
            goals += read(json.loads((folder / f"{name}.json").read_text()))
    table = Table("", "measured", "goal: at most", "", "reference", title="Goals of the benchmarks")
    for goal in goals:
        shown = "-" if goal.value is None else f"{goal.value:.3g}"
        table.add_row(goal.what, shown, f"{goal.limit:g} {goal.unit}", goal.verdict, goal.beside)
    Console().print(table)
    records = [vars(goal) | {"verdict": goal.verdict} for goal in goals]
    (folder / "goals.json").write_text(json.dumps(records, indent=1))
