"""Time the learners on data of the size of LFW's gallery: 12,810 faces of 9,860 numbers.

    python -m benchmarks.learning [--rows FILE.npy --names FILE] [--updates 1000000] [--json FILE]

FILE.npy: (N, D) in the order of the names, one `Name/Name_0001.jpg` per line; by default, random rows of random people.
CP-mtML: D -> 64, with as many pairs as `--updates`, compared with stML and with Algorithm 1 pair by pair, of which 300
pairs are timed. That reference takes a step at every pair, although the algorithm only takes one if a pair violates the
margin, so its time is an upper bound. The second task has random classes, each of which shifts the rows slightly, so
that it can be learned: pairs within the margin cost less. LDML: d = 32; CLML: d = 32, k = 16, and the time to embed.
Times are wall clock seconds.
"""

import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from app.threads import set_threads
from ml.embedders.base import Embedder, TaskData, TrainingSet
from ml.registry import build
from ml.types import Rows

FACES, NUMBERS, PEOPLE, CLASSES = 12_810, 9_860, 5_749, 7
TIMED_PAIRS = 300
BATCH = 256


def load_training_set(rows: Path | None, names: Path | None) -> TrainingSet:
    if rows is not None and names is not None:
        described = np.load(rows).astype(np.float32)
        _, who = np.unique([n.partition("/")[0] for n in names.read_text().split()], return_inverse=True)
    else:
        random = np.random.default_rng(0)
        who = np.sort(random.integers(0, PEOPLE, FACES))
        described = random.random((FACES, NUMBERS), np.float32)
        described += 0.5 * random.random((PEOPLE, NUMBERS), np.float32)[who]
    classes = np.random.default_rng(1).integers(0, CLASSES, len(who))
    described += (
        np.random.default_rng(2).normal(0, described.std(0) / 4, (CLASSES, NUMBERS)).astype(np.float32)[classes]
    )
    faces, people = np.arange(len(who)), who.astype(np.int64)
    tasks = (TaskData("identity", faces, who * 1.0, people), TaskData("expression", faces, classes * 1.0, people))
    return TrainingSet(described, tasks)


def time_fit(name: str, data: TrainingSet, **options: Any) -> tuple[float, Embedder]:
    embedder = build("embedders", name, **options)
    start = perf_counter()
    embedder.fit(data)
    return perf_counter() - start, embedder


def time_pair_steps(rows: Rows) -> float:
    """Return the seconds per pair of Algorithm 1 as printed (L_0 and L_t of 64 x D), with a step at every pair."""
    x = torch.from_numpy(rows[: 2 * TIMED_PAIRS])
    common, own = torch.randn(2, 64, x.shape[1]) / x.shape[1] ** 0.5
    start = perf_counter()
    for i in range(TIMED_PAIRS):
        u = x[2 * i] - x[2 * i + 1]
        a, b = common @ u, own @ u
        step = 1e-6 * (1 if float(a @ a + b @ b) > 1 else -1)
        common -= step * torch.outer(a, u)
        own -= step * torch.outer(b, u)
    return (perf_counter() - start) / TIMED_PAIRS


def measure(data: TrainingSet, updates: int) -> dict[str, Any]:
    hinge = {"dim": 64, "steps": updates // BATCH, "batch": BATCH, "held_out": 0.0}
    figures: dict[str, Any] = {"numbers": data.rows.shape[1], "pair_by_pair_s": updates * time_pair_steps(data.rows)}
    alone = replace(data, tasks=data.tasks[:1])
    figures["stml_s"] = time_fit("stml", alone, **hinge)[0]
    figures["cpmtml_s"] = time_fit("cpmtml", data, **hinge)[0]
    figures["ldml_s"] = time_fit("ldml", alone, dim=32)[0]
    figures["clml_s"], clml = time_fit("clml", alone, dim=32, k=16)
    start = perf_counter()
    clml.embed(data.rows[:1000])
    figures["clml_batch_ms"] = perf_counter() - start
    figures["clml_query_ms"] = 1e3 * median(time_embed(clml, data.rows[i : i + 1]) for i in range(50))
    return figures


def time_embed(embedder: Embedder, rows: Rows) -> float:
    start = perf_counter()
    embedder.embed(rows)
    return perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--names", type=Path)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    set_threads(os.cpu_count() or 1)
    figures = measure(load_training_set(args.rows, args.names), args.updates)
    figures |= {"updates": args.updates, "data": args.rows.name if args.rows else "drawn"}
    figures["pair_by_pair_steps_at"] = "every pair"
    figures |= {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
