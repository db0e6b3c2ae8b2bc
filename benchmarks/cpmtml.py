"""Measure the gain from a second task: CP-mtML and stML of d and 2d, on LFW's closed set (002, Tables 2 and 4).

    python -m benchmarks.cpmtml --rows FILE.npy --names FILE --protocol DIR [--aux-rows FILE.npy --aux-values FILE]
                                [--draws 3] [--dim 64] [--methods NAME,...] [--out FILE.json]

FILE.npy: (N, D) float32 descriptors of LFW's photos in the order of the names, one `Name/Name_0001.jpg` a line; DIR has
`queries-K.txt` and `lfw-expression.csv`. The auxiliary task is expression on LFW itself, or age, given the descriptors
of other faces and their ages (text, one a line; ages up to 3 years apart are alike). 10,000 identity pairs, 40,000
auxiliary pairs. Every method has the same tuning budget: two rates, each stopped early on people held out of the
first draw's training side. With the best rate and number of steps, it is then fitted to everybody for each draw.
Results that --out already contains are not measured again.
"""

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ml.embedders.base import TaskData, TrainingSet
from ml.embedders.cpmtml import Cpmtml
from ml.embedders.mtlmca import Mtlmca
from ml.embedders.stml import Stml
from ml.embedders.utml import Utml
from ml.embedders.wpca import Wpca
from ml.evaluation.intervals import over_draws, paired_difference
from ml.evaluation.protocols import Protocol, read
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions, n_call
from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.types import Rows

CALLS = (2, 5, 10, 20)
RATES = (0.06, 0.12)
PAIRS, AUXILIARY = 10_000, 40_000
STEPS = 300
"""Largest number of batches for each task; early stopping uses fewer."""


@dataclass(frozen=True, eq=False)
class TaskFaces:
    """The photos with their labels, and the faces of the auxiliary task, if it has its own."""

    rows: Rows
    names: list[str]
    moods: NDArray[np.float64]
    others: Rows | None
    ages: NDArray[np.float64]

    def training(self, protocol: Protocol) -> TrainingSet:
        fit = protocol.training
        people, n = protocol.people[fit], len(fit)
        identity = TaskData("identity", np.arange(n), people.astype(np.float64), people)
        if self.others is None:
            mood = TaskData("expression", np.arange(n), self.moods[fit], people)
            return TrainingSet(self.rows[fit], (identity, mood))
        more = np.arange(n, n + len(self.others))
        age = TaskData("age", more, self.ages, np.full(len(more), -1), tolerance=3.0)
        return TrainingSet(np.concatenate([self.rows[fit], self.others]), (identity, age))


def load_task_faces(args: argparse.Namespace) -> TaskFaces:
    names = args.names.read_text().split()
    emotion_of_image = {r["image"]: r["emotion"] for r in csv.DictReader((args.protocol / "lfw-expression.csv").open())}
    kinds = {kind: float(i) for i, kind in enumerate(sorted(set(emotion_of_image.values())))}
    moods = np.array([kinds.get(emotion_of_image.get(name.split("/")[1], ""), np.nan) for name in names])
    others = None if args.aux_rows is None else np.load(args.aux_rows)
    ages = np.empty(0) if args.aux_values is None else np.loadtxt(args.aux_values)
    return TaskFaces(np.load(args.rows), names, moods, others, ages)


def list_methods(dim: int) -> dict[str, Callable[[], HingeEmbedder]]:
    both = {"pairs": PAIRS, "auxiliary_pairs": AUXILIARY, "dim": dim, "steps": 2 * STEPS}
    return {
        f"stML d={dim}": lambda: Stml.from_options(dim=dim, pairs=PAIRS, steps=STEPS),
        f"stML d={2 * dim}": lambda: Stml.from_options(dim=2 * dim, pairs=PAIRS, steps=STEPS),
        f"CP-mtML d={dim}, L0 from L1": lambda: Cpmtml.from_options(**both, common="first"),
        f"CP-mtML d={dim}, L0 next": lambda: Cpmtml.from_options(**both, common="next"),
        f"utML d={dim}": lambda: Utml.from_options(**both),
        f"mtLMCA d={dim}": lambda: Mtlmca.from_options(**both),
    }


def measure(lfw: TaskFaces, make: Callable[[], HingeEmbedder], protocols: list[Protocol]) -> dict[str, Any]:
    """Tune on held-out people, fit for each draw, and return the results of every query."""
    tried: list[HingeEmbedder] = []
    for rate in RATES:
        one = replace(make(), rate=rate, held_out=0.2, refit=False)
        tried.append(one.fit(lfw.training(protocols[0])))
    best = max(tried, key=lambda e: e.notes["held_out"])
    chosen = replace(best, held_out=0.0, steps=best.notes["steps"])
    draws, times = [], []
    for protocol in protocols:
        start = perf_counter()
        fitted = replace(chosen).fit(lfw.training(protocol))
        times.append(perf_counter() - start)
        draws.append(measure_queries(fitted.embed(lfw.rows), protocol))
    return {
        "rate": chosen.rate,
        "steps": chosen.steps,
        "held_out": best.notes["held_out"],
        "stored": int(best.learned["projections"].shape[1]),
        "seconds": float(np.median(times)),
        "draws": draws,
    }


def measure_queries(z: Rows, protocol: Protocol) -> dict[str, list[float]]:
    ranked = rank_protocol(z, protocol)
    return {"people": ranked.groups.tolist(), "mAP": average_precisions(ranked).tolist()} | {
        str(k): n_call(ranked, k).tolist() for k in CALLS
    }


def measure_unlearned(lfw: TaskFaces, dim: int, protocols: list[Protocol]) -> dict[str, Any]:
    """Measure WPCA of the training side, from which all methods start."""
    draws = []
    for protocol in protocols:
        fitted = Wpca(dim=dim).fit(TrainingSet(lfw.rows[protocol.training], ()))
        draws.append(measure_queries(fitted.embed(lfw.rows), protocol))
    return {"rate": 0.0, "steps": 0, "held_out": None, "stored": dim, "seconds": 0.0, "draws": draws}


def compare_methods(a: dict[str, Any], b: dict[str, Any], figure: str) -> dict[str, Any]:
    """Return a - b in points: over all queries with people resampled, and by draw with Student's interval."""
    one, other = (np.concatenate([d[figure] for d in m["draws"]]) for m in (a, b))
    people = np.concatenate([d["people"] for d in a["draws"]])
    by_draw = [np.mean(x[figure]) - np.mean(y[figure]) for x, y in zip(a["draws"], b["draws"], strict=True)]
    return {
        "people": vars(paired_difference(100 * one, 100 * other, people)),
        "draws": vars(over_draws(100 * np.array(by_draw))),
    }


def show(results: dict[str, Any], header: str) -> None:
    table = Table(title=header)
    for column in ("method", "stored", *(f"@{k}" for k in CALLS), "mAP", "rate", "steps", "fit, s"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, r in results["methods"].items():
        means = [f"{100 * np.mean([np.mean(d[f]) for d in r['draws']]):.1f}" for f in (*map(str, CALLS), "mAP")]
        table.add_row(name, str(r["stored"]), *means, f"{r['rate']:g}", str(r["steps"]), f"{r['seconds']:.0f}")
    console = Console(width=110)
    console.print(table)
    for name, d in results["differences"].items():
        people, draws = d["people"], d["draws"]
        console.print(
            f"1-call@10, {name}: {people['value']:+.1f} [{people['low']:+.1f}, {people['high']:+.1f}] by people, "
            f"[{draws['low']:+.1f}, {draws['high']:+.1f}] by draws"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rows", "names", "protocol"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("aux-rows", "aux-values", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--methods", help="indexes of the methods to measure, such as 0,2; default: all")
    args = parser.parse_args()
    lfw = load_task_faces(args)
    protocols = [read(f"queries-{k}", args.protocol, lfw.names) for k in range(args.draws)]
    results = json.loads(args.out.read_text()) if args.out and args.out.exists() else {"methods": {}}
    every = list(list_methods(args.dim).items())
    for number in map(int, args.methods.split(",")) if args.methods else range(len(every)):
        name, make = every[number]
        if name not in results["methods"]:
            results["methods"][name] = measure(lfw, make, protocols)
    results["methods"].setdefault(f"WPCA d={args.dim}", measure_unlearned(lfw, args.dim, protocols))
    done = results["methods"]
    results["differences"] = {
        f"{a} less {b}": compare_methods(done[a], done[b], "10")
        for a in done
        for b in done
        if a.startswith("CP") and b.startswith("stML")
    }
    if args.out:
        args.out.write_text(json.dumps(results))
    task = "expression on LFW" if lfw.others is None else f"age on {len(lfw.others)} other faces"
    show(results, f"LFW, {args.draws} draws of 423 queries; {PAIRS} identity pairs, {AUXILIARY} pairs of {task}")


if __name__ == "__main__":
    main()
