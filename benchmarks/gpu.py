"""Time searches of an index on the GPU against the same index on the CPU, and what a change costs there.

    python -m benchmarks.gpu [--faces 100000 1000000] [--dim 64] [--json FILE]

Both indexes hold the same drawn vectors in the same cells and probe the same ones; k = 10. Times are medians of
searches in turn. The CPU searches with all its threads.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import faiss
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.index import K, draw_embeddings
from ml.indexes import build
from ml.indexes.base import Index
from ml.types import Rows

QUERIES = 1024
BATCHES = (1, 4, 16, 64, 256)
ROUNDS = 30
CHANGED = 100


def time_once(call: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    start = perf_counter()
    call()
    return 1000 * (perf_counter() - start)


def time_in_turn(indexes: dict[str, Index], queries: Rows, size: int) -> dict[str, float]:
    """Return the median milliseconds of a search by `size` vectors in each index."""
    times: dict[str, list[float]] = {name: [] for name in indexes}
    for turn in range(ROUNDS):
        batch = queries[np.arange(turn * size, (turn + 1) * size) % len(queries)]
        for name, index in indexes.items():
            times[name].append(time_once(partial(index.search, batch, K)))
    return {name: round(median(values), 3) for name, values in times.items()}


def time_changes(index: Index, rows: Rows, queries: Rows) -> dict[str, float]:
    """Return the milliseconds of changes to an index, and of the first search after each."""
    new = np.arange(len(index), len(index) + CHANGED)
    calls = {
        f"add {CHANGED} faces": lambda: index.add(new, rows[:CHANGED]),
        "search after it": lambda: index.search(queries[:1], K),
        f"remove {CHANGED} faces": lambda: index.remove(new),
        "search after that": lambda: index.search(queries[:1], K),
        f"remove {10 * CHANGED} faces": lambda: index.remove(np.arange(10 * CHANGED)),
        "search after that, too": lambda: index.search(queries[:1], K),
    }
    return {name: round(time_once(call), 2) for name, call in calls.items()}


def compare(faces: int, dim: int) -> dict[str, Any]:
    """Return the figures for a gallery of so many faces."""
    drawn = draw_embeddings(faces + QUERIES, dim)
    queries, rows = drawn[:QUERIES], drawn[QUERIES:]
    indexes = {name: build(np.arange(faces), rows, device=name) for name in ("cpu", "cuda")}
    copying = time_once(indexes["cuda"].finish_build)
    here, there = (index.search(queries, K) for index in indexes.values())
    return {
        "faces": faces,
        "dim": dim,
        "cells": indexes["cpu"].cells,
        "m": here.m,
        "same_ids": float((here.ids == there.ids).mean()),
        "largest_relative_difference": float((np.abs(here.distances - there.distances) / here.distances).max()),
        "copy_ms": round(copying, 1),
        "search_ms": {size: time_in_turn(indexes, queries, size) for size in BATCHES},
        "change_ms": {name: time_changes(index, rows, queries) for name, index in indexes.items()},
    }


def show(figures: dict[str, Any]) -> None:
    console = Console(width=120)
    title = f"{figures['faces']:,} x {figures['dim']}, p = {figures['cells']}, m = {figures['m']}, k = {K}"
    table = Table("vectors in a search", "CPU, ms", "GPU, ms", "times as fast", title=title)
    for size, times in figures["search_ms"].items():
        table.add_row(str(size), *(f"{times[name]:.3f}" for name in times), f"{times['cpu'] / times['cuda']:.1f}")
    console.print(table)
    table = Table("change", "CPU, ms", "GPU, ms")
    for name, milliseconds in figures["change_ms"]["cpu"].items():
        table.add_row(name, f"{milliseconds:.2f}", f"{figures['change_ms']['cuda'][name]:.2f}")
    console.print(table)
    same, difference = figures["same_ids"], figures["largest_relative_difference"]
    console.print(f"same ids {same:.6f}, distances within {difference:.1e}, copied in {figures['copy_ms']} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"FAISS {faiss.__version__} ({faiss.get_compile_options().strip()}), {faiss.omp_get_max_threads()} threads")
    rows = []
    for faces in args.faces:
        rows.append(compare(faces, args.dim))
        show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
