"""LFW view 2, ten folds: SML, both CoSiM, Sub-SML and what late fusion makes of them (000, Table 5), and their time.

    python -m benchmarks.cosim [--rows LBP.npy --rows SIFT.npy --names NAMES.txt --pairs pairs.txt]
                               [--folds 10] [--steps 1500] [--reference 200] [--json FILE]

Without data it measures the time of a step alone: two descriptors of 300 numbers, batches of 128 pairs.
FILE.npy: (N, D) float32, a descriptor each, in the order of the names, one `Name/Name_0001.jpg` a line. A fold's
system learns from eight others; the ninth stops it, and gives the threshold, the normalisation and the fusion. The
reference is a Keras-style network, one fold at a time, of autograd layers; `--reference` is its number of steps.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ml.embedders._collaborative import in_turn
from ml.embedders._cosim import Branches
from ml.embedders._cosim_descent import Course, Descent
from ml.embedders._pools import Pool
from ml.embedders.base import Embedder, TaskData, TrainingSet, silent
from ml.evaluation.intervals import over_draws
from ml.evaluation.verification import accuracy, best_threshold, over_folds
from ml.evaluation.verification_pairs import Fold, Pairs, read_folds
from ml.fusion.normalise import Normalise
from ml.fusion.svm import Svm
from ml.registry import build
from ml.types import Rows

Scores = NDArray[np.float64]

PAIRED = (("cosim_mass", "SML fused"), ("cosim_average", "SML fused"), ("cosim_average", "cosim_mass"))
"""Compared fold by fold. The folds share what they learn from, so Student's interval is somewhat too narrow."""


@dataclass(frozen=True, eq=False)
class Round:
    """One of the ten: what is learned from, which pairs stop it and set its threshold, and which are the test.

    data: nothing but given pairs, of the nine other folds; a face's person is the number of its fold
    """

    data: TrainingSet
    judges: Pairs
    test: Pairs

    @classmethod
    def of(cls, rows: Sequence[Rows], folds: Sequence[Fold], k: int, seed: int = 0) -> "Round":
        others = [i for i in range(len(folds)) if i != k]
        pairs = Pairs.of([folds[i].pairs for i in others])
        faces, ends = np.unique(pairs.index, return_inverse=True)
        at = ends.reshape(-1, 2)
        fold = np.zeros(len(faces), np.int64)
        fold[at] = np.repeat(others, [len(folds[i].pairs.same) for i in others])[:, None]
        ones, unknown = np.ones(len(at), np.float32), np.full(len(faces), np.nan)
        task = TaskData("identity", np.arange(len(faces)), unknown, fold, 0.0, at, pairs.same, ones)
        parts = [part[faces] for part in rows]
        data = TrainingSet(np.concatenate(parts, axis=1), (task,), tuple(part.shape[1] for part in parts))
        return cls(data, folds[in_turn(task, seed)[0]].pairs, folds[k].pairs)

    def only(self, i: int) -> TrainingSet:
        """By one of the descriptors alone."""
        ends = np.cumsum((0, *self.data.blocks))
        return TrainingSet(np.ascontiguousarray(self.data.rows[:, ends[i] : ends[i + 1]]), self.data.tasks)

    def without_judges(self, data: TrainingSet, judge: int) -> TrainingSet:
        [task] = data.tasks
        kept = task.people[task.pairs[:, 0]] != judge
        fields = vars(task) | {"pairs": task.pairs[kept], "same": task.same[kept], "weights": task.weights[kept]}
        return TrainingSet(data.rows, (TaskData(**fields),))


@dataclass(eq=False)
class Measured:
    """What one system says of a round's pairs, higher is more alike, and what it took to learn it."""

    judges: Scores
    test: Scores
    wall: float = 0.0
    cpu: float = 0.0


def measured(embedder: Embedder, data: TrainingSet, round_: Round, rows: Rows) -> Measured:
    wall, cpu = perf_counter(), process_time()
    embedder.fit(data)
    wall, cpu = perf_counter() - wall, process_time() - cpu
    said = []
    for pairs in (round_.judges, round_.test):
        first, second = (embedder.embed(rows[pairs.index[:, end]]) for end in (0, 1))
        said.append(-embedder.metric.paired(first, second).astype(np.float64))
    return Measured(*said, wall, cpu)


def fused(systems: Sequence[Measured], round_: Round) -> Measured:
    judges, test = (np.stack([getattr(s, part) for s in systems], 1) for part in ("judges", "test"))
    normal = Normalise().fit(judges, round_.judges.same)
    machine = Svm().fit(normal(judges), round_.judges.same)
    return Measured(machine(normal(judges)), machine(normal(test)))


def played(rows: Sequence[Rows], folds: Sequence[Fold], k: int, steps: int) -> tuple[Round, dict[str, Measured]]:
    round_ = Round.of(rows, folds, k)
    judge = int(in_turn(round_.data.tasks[0], 0)[0])
    whole, options = np.concatenate(rows, axis=1), {"held_out": 1 / 9, "steps": steps}
    found: dict[str, Measured] = {}
    for i, part in enumerate(rows):
        data = round_.only(i)
        found[f"SML {i}"] = measured(build("embedders", "sml", **options), data, round_, part)
        kept = round_.without_judges(data, judge)
        found[f"Sub-SML {i}"] = measured(build("embedders", "subsml"), kept, round_, part)
    for name in ("cosim_mass", "cosim_average"):
        found[name] = measured(build("embedders", name, **options), round_.data, round_, whole)
    single = [f"SML {i}" for i in range(len(rows))]
    subs = [f"Sub-SML {i}" for i in range(len(rows))]
    joint = [*single, "cosim_mass", "cosim_average"]
    for title, members in {"SML fused": single, "JSML": joint, "Sub-SML fused": subs, "all": joint + subs}.items():
        found[title] = fused([found[m] for m in members], round_)
    return round_, found


class Reference(nn.Module):
    """Tables 1 and 2 of 000, layer by layer."""

    def __init__(self, n: int, width: int, together: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, eps=1e-3, momentum=0.01) for _ in range(n))
        self.shared = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n))
        for layer in self.shared:
            nn.init.eye_(layer.weight)
        self.drop, self.together = nn.Dropout(0.7), together
        self.bias = nn.Parameter(0.01 * torch.randn(1 if together else n))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dots = []
        for i, (norm, shared) in enumerate(zip(self.norms, self.shared, strict=True)):
            p, q = (shared(self.drop(norm(of[i]))) for of in (x, y))
            dots.append((p * q).sum(1))
        s = torch.stack(dots)
        return torch.sigmoid((s.sum(0, keepdim=True) if self.together else s) + self.bias[:, None]).mean(0)


def timed(n: int, pairs: int, steps: int, width: int = 300, batch: int = 128) -> dict[str, Any]:
    """Milliseconds a step: the reference, ours, and ours with ten fits as one product; noise in place of faces."""
    torch.manual_seed(0)
    x, same = torch.randn(n, pairs, width), torch.rand(pairs) < 0.5
    ends = torch.randint(0, pairs, (pairs, 2))
    pool = Pool(ends, torch.where(same, 1.0, -1.0), torch.ones(pairs))
    course = Course(steps, batch, 1e-3, 1e-3, 0.7)
    told = {}
    for form, together in (("mass", True), ("average", False)):
        net = Reference(n, width, together)
        adam = torch.optim.Adam(net.parameters(), lr=1e-3)
        decay = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: 1 / (1 + 1e-3 * t))
        start = process_time()
        for _ in range(steps):
            at = torch.randint(0, pairs, (batch,))
            g = net(x[:, ends[at, 0]], x[:, ends[at, 1]])
            adam.zero_grad()
            nn.functional.binary_cross_entropy(g, same[at].float()).backward()
            adam.step()
            decay.step()
        told[f"{form}: reference, ms a step"] = 1000 * (process_time() - start) / steps
        for fits in (1, 10):
            m = 1 if together else n
            shares = torch.full((m, fits), 1 / m)
            model = Branches.start(n, width, torch.zeros(m, fits), together=together)
            start = process_time()
            Descent(0.1 * x[:, None], [pool] * fits, None, shares, course, 0).run(model, silent)
            spent = 1000 * (process_time() - start) / steps / fits
            told[f"{form}: {fits} at once, ms a step and fit"] = spent
    return {name: round(value, 2) for name, value in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, action="append", default=[])
    parser.add_argument("--names", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--reference", type=int, default=200)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    report: dict[str, Any] = view_two(told) if told.rows else {}
    report["steps"] = timed(len(told.rows) or 2, 5400, told.reference)
    for name, line in report.items():
        print(f"{name:15}", line)
    if told.json:
        told.json.write_text(json.dumps(report, indent=1))


def view_two(told: argparse.Namespace) -> dict[str, Any]:
    rows = [np.load(path, mmap_mode="r") for path in told.rows]
    folds = read_folds(told.pairs, told.names.read_text().split())
    kept: dict[str, list[tuple[float, float, float]]] = {}
    for k in range(told.folds):
        round_, found = played(rows, folds, k, told.steps)
        for name, one in found.items():
            threshold = best_threshold(-one.judges, round_.judges.same)
            right = accuracy(-one.test, round_.test.same, threshold)
            kept.setdefault(name, []).append((100 * right, one.wall, one.cpu))
        print(k, {name: round(values[-1][0], 2) for name, values in kept.items()}, flush=True)
    report = {name: described(np.array(values)) for name, values in kept.items()}
    for first, second in PAIRED:
        apart = [a[0] - b[0] for a, b in zip(kept[first], kept[second], strict=True)]
        report[f"{first} less {second}"] = {k: round(v, 2) for k, v in vars(over_draws(np.array(apart))).items()}
    return report


def described(values: Scores) -> dict[str, float]:
    folds = over_folds(values[:, 0])
    sums = {"wall": values[:, 1].sum(), "cpu": values[:, 2].sum()}
    return {k: round(float(v), 2) for k, v in {"accuracy": folds.mean, "sd": folds.sd, "se": folds.se, **sums}.items()}


if __name__ == "__main__":
    main()
