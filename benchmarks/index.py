"""Time the indexes: flat and with cells, the curve over m, and the overhead over FAISS.

    python -m benchmarks.index [--rows FILE.npy] [--n N] [--dim D] [--cells P] [--json FILE]

FILE.npy: (N, d) float32 embeddings, 200 of which become queries; by default, N random vectors (a mixture of N / 20
people, `--dim` numbers). Searches are by single vectors, k = 10; times are medians.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from ml.indexes import build, measure_curve
from ml.indexes.base import Index
from ml.types import Rows

QUERIES = 200
K = 10


def draw_embeddings(n: int, dim: int) -> Rows:
    """Draw faces around people around a few centres: unevenly dense, like embeddings."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(50, dim))
    people = kinds[rng.integers(0, 50, n // 20 + 1)] + 0.7 * rng.normal(size=(n // 20 + 1, dim))
    return (people[rng.integers(0, len(people), n)] + 0.4 * rng.normal(size=(n, dim))).astype(np.float32)


def time_single_searches(search: Any, queries: Rows) -> float:
    """Return the median milliseconds of a search by a single vector."""
    times = []
    for query in queries:
        start = perf_counter()
        search(query[None])
        times.append((perf_counter() - start) * 1000)
    return median(times)


def build_bare(rows: Rows) -> Any:
    """Build a bare FAISS index for exhaustive search."""
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    return lambda query: index.search(query, K)


def build_index(rows: Rows, p: int | None) -> tuple[Index, float]:
    start = perf_counter()
    index = build(np.arange(len(rows)), rows, p=p, device="cpu")
    return index, perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = np.load(options.rows) if options.rows else draw_embeddings(options.n + QUERIES, options.dim)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    queries, rows = rows[:QUERIES], rows[QUERIES:]
    flat, flat_s = build_index(rows, 1)
    ivf, ivf_s = build_index(rows, options.cells)
    figures = {
        "faces": len(rows),
        "dim": rows.shape[1],
        "data": options.rows.name if options.rows else "drawn",
        "cells": ivf.cells,
        "build_s": {"flat": flat_s, "ivf": ivf_s},
        "faiss_flat_ms": time_single_searches(build_bare(rows), queries),
        "flat_ms": time_single_searches(lambda query: flat.search(query, K), queries),
        "curve": [asdict(point) for point in measure_curve(ivf, queries, K)],
    }
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def show(figures: dict[str, Any]) -> None:
    title = f"{figures['faces']:,} x {figures['dim']} ({figures['data']}), p = {figures['cells']}, k = {K}"
    table = Table("search", "ms", "recall@10", "distances", "times fewer", title=title)
    table.add_row("FAISS flat, bare", f"{figures['faiss_flat_ms']:.3f}", "1", "1", "1")
    table.add_row("flat", f"{figures['flat_ms']:.3f}", "1", "1", "1")
    for point in figures["curve"]:
        fraction = point["fraction"]
        cells = [f"{point['ms']:.3f}", f"{point['recall']:.3f}", f"{fraction:.4f}", f"{1 / fraction:.1f}"]
        table.add_row(f"m = {point['m']}", *cells)
    Console().print(table)
    seconds = figures["build_s"]
    Console().print(f"built in {seconds['flat']:.2f} s flat, {seconds['ivf']:.2f} s with cells")


if __name__ == "__main__":
    main()
