"""Time searches of an index by one thread, and by threads that share long scans.

    python -m benchmarks.shared_scans [--faces 100000 1000000] [--dim 64] [--rounds 15] [--helpers N]

Searches are by 1, 2, 4, 8 and 16 vectors together, k = 48, as the API puts them together; scans of few vectors are not
shared. Alone and shared are measured in turn, and the answers must be the same. helpers: threads beside the caller's;
by default one for each further core.
"""

import argparse
import statistics
import time

import numpy as np
from joblib import cpu_count
from rich.console import Console
from rich.table import Table

from benchmarks.index import draw_embeddings
from benchmarks.load.processes import restart_with_one_thread
from ml.indexes import build, scan_helpers
from ml.indexes.base import Index
from ml.types import Rows

BATCHES = (1, 2, 4, 8, 16)
K, SEARCHES = 48, 10
ALONE, SHARED = "alone", "shared"
Times = tuple[float, float]
"""Milliseconds by the clock and of processor time, of one search by all vectors of a batch."""


def time_searches(index: Index, batches: list[Rows], helpers: int) -> Times:
    """Return the mean of searches, some of whose scans so many threads help with."""
    scan_helpers().count = helpers
    started, spent = time.perf_counter(), time.process_time()
    for queries in batches:
        index.search(queries, K)
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - spent
    scan_helpers().count = 0
    return 1000 * seconds / len(batches), 1000 * processor_seconds / len(batches)


def check_answers(index: Index, queries: Rows, helpers: int) -> None:
    """Raises AssertionError if threads that share a scan find something else."""
    alone = index.search(queries, K)
    scan_helpers().count = helpers
    shared = index.search(queries, K)
    scan_helpers().count = 0
    assert np.array_equal(alone.ids, shared.ids)
    assert np.array_equal(alone.distances, shared.distances)


def compare(faces: int, dim: int, rounds: int, helpers: int) -> Table:
    """Compare both for each size of batch. Returns the table of medians."""
    rows = draw_embeddings(faces + len(BATCHES) * SEARCHES * max(BATCHES), dim)
    index, queries = build(np.arange(faces), rows[:faces], device="cpu"), rows[faces:]
    table = Table(title=f"{faces:,} faces of {dim} numbers, {index.cells} cells, {index.default_m} probed")
    for heading in ("together", ALONE, SHARED, "alone / shared", "processor time: shared / alone"):
        table.add_column(heading, justify="right")
    for size in BATCHES:
        batches = [queries[start : start + size] for start in range(0, size * SEARCHES, size)]
        check_answers(index, batches[0], helpers)
        times = [[time_searches(index, batches, count) for count in (0, helpers)] for _ in range(rounds)]
        wall = [alone[0] / shared[0] for alone, shared in times]
        spent = [shared[1] / alone[1] for alone, shared in times]
        medians = [f"{statistics.median(of_round[way][0] for of_round in times):.2f} ms" for way in (0, 1)]
        spread = f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})"
        table.add_row(str(size), *medians, spread, f"{statistics.median(spent):.2f}")
    return table


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--helpers", type=int, default=max(1, cpu_count() - 1))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    for faces in args.faces:
        Console().print(compare(faces, args.dim, args.rounds, args.helpers))


if __name__ == "__main__":
    restart_with_one_thread("benchmarks.shared_scans")
    main()
