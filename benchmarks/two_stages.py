"""Compare a flat index, cells, and two stages: recall, time, memory and the time to build, in one run.

    python -m benchmarks.two_stages [--rows FILE.npy] [--n N] [--dim D] [--bits 1 2 4] [--recall 0.99] [--json FILE]

FILE.npy: (N, d) float32 embeddings, 300 of which become queries; by default, N random vectors as `benchmarks.index`
draws them. For each index, the cheapest setting that reaches the recall of the ten nearest is taken: m in powers of
two, and for two stages also 20, 40, ... 640 candidates. Then all of these are timed query by query in turn, so that
they share the load of the machine. Times are of the processor, one thread, k = 10; memory is what the process grew by.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import thread_time
from typing import Any

import faiss
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.index import draw_embeddings
from ml.indexes import build
from ml.indexes.base import Index
from ml.types import Ids, Rows

QUERIES, SETTING_QUERIES = 300, 30
K = 10
CANDIDATES = (20, 40, 80, 160, 320, 640)


@dataclass(frozen=True)
class Setting:
    """How an index is searched, and what that achieved. ms: median milliseconds when it was chosen"""

    index: str
    m: int
    candidates: int | None
    recall_at_1: float
    recall: float
    ms: float


def time_searches(index: Index, queries: Rows, m: int, candidates: int | None) -> list[float]:
    """Return the processor milliseconds of a search by each of (Q, d) queries."""
    return [time_search(index, query, m, candidates) for query in queries]


def time_search(index: Index, query: Rows, m: int, candidates: int | None) -> float:
    start = thread_time()
    index.search(query[None], K, m=m, candidates=candidates)
    return 1000 * (thread_time() - start)


def find_setting(name: str, index: Index, queries: Rows, true: Rows, recall: float) -> Setting | None:
    """Find the cheapest setting that reaches the recall. true: (Q, k) distances of the nearest faces"""
    settings = [
        measure_setting(name, index, queries, true, 1 << power, candidates)
        for power in range(index.cells.bit_length())
        for candidates in (CANDIDATES if index.default_candidates else (None,))
    ]
    return min((s for s in settings if s.recall >= recall), key=lambda s: s.ms, default=None)


def measure_setting(name: str, index: Index, queries: Rows, true: Rows, m: int, candidates: int | None) -> Setting:
    distances = index.search(queries, K, m=m, candidates=candidates).distances
    at_1, at_k = (float((distances[:, :n] <= true[:, n - 1 : n]).mean()) for n in (1, K))
    ms = float(np.median(time_searches(index, queries[:SETTING_QUERIES], m, candidates)))
    return Setting(name, m, candidates, at_1, at_k, ms)


def build_all(ids: Ids, rows: Rows, bits: list[int], folder: Path) -> tuple[dict[str, Index], dict[str, Any]]:
    """Build every index, and return them with the seconds and the bytes per face that each took."""
    choices: dict[str, dict[str, Any]] = {"flat": {"name": "flat", "p": 1}, "cells": {"name": "ivf"}}
    for count in bits:
        further = {"bits": count, "rows": "file"}
        choices[f"two stages, {count} bits"] = {"name": "two_stage", "folder": folder, "further": further}
    indexes, costs = {}, {}
    for name, options in choices.items():
        before, start = measure_private_bytes(), thread_time()
        indexes[name] = build(ids, rows, device="cpu", **options)
        seconds = thread_time() - start
        costs[name] = {"build_s": seconds, "bytes_per_face": (measure_private_bytes() - before) / len(ids)}
    return indexes, costs


def measure_private_bytes() -> int:
    """Return the resident memory of this process that no file backs."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def time_in_turn(indexes: Mapping[str, Index], settings: list[Setting], queries: Rows) -> list[dict[str, Any]]:
    """Time every setting with each query in turn, and return each setting with its median and 95th percentile."""
    times = np.array([[time_search(indexes[s.index], query, s.m, s.candidates) for s in settings] for query in queries])
    return [
        vars(setting) | {"ms": float(np.median(own)), "p95_ms": float(np.percentile(own, 95))}
        for setting, own in zip(settings, times.T, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--recall", type=float, nargs="+", default=[0.95, 0.99])
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the rows of the second stage lie")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    rows = np.load(options.rows) if options.rows else draw_embeddings(options.n + QUERIES, options.dim)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    queries, rows = rows[:QUERIES].copy(), rows[QUERIES:]
    indexes, costs = build_all(np.arange(len(rows)), rows, options.bits, options.folder)
    true = indexes["flat"].search(queries, K).distances
    figures: dict[str, Any] = {"faces": len(rows), "dim": rows.shape[1], "costs": costs, "at": {}}
    for recall in options.recall:
        settings = [find_setting(name, index, queries, true, recall) for name, index in indexes.items()]
        figures["at"][recall] = time_in_turn(indexes, [s for s in settings if s is not None], queries)
        show(figures, recall)
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))


def show(figures: dict[str, Any], recall: float) -> None:
    title = f"{figures['faces']:,} x {figures['dim']}, recall@{K} of {recall} or more"
    columns = ("index", "m", "candidates", "recall@1", f"recall@{K}", "ms", "p95 ms", "bytes a face", "build s")
    table = Table(*columns, title=title)
    for point in figures["at"][recall]:
        cost = figures["costs"][point["index"]]
        table.add_row(
            point["index"],
            str(point["m"]),
            str(point["candidates"] or ""),
            f"{point['recall_at_1']:.3f}",
            f"{point['recall']:.3f}",
            f"{point['ms']:.3f}",
            f"{point['p95_ms']:.3f}",
            f"{cost['bytes_per_face']:.0f}",
            f"{cost['build_s']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
