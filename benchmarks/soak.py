"""Offer a service half of what it can answer for an hour, and report how its memory grows.

    python -m benchmarks.soak [--minutes 60] [--faces 20000] [--rate REQUESTS_PER_SECOND] [--json FILE]

The traffic is that of benchmarks/load/traffic.py. What it adds it removes again, so that what the service keeps in
memory stays as large as it is: each new face is deleted, and each label taken back. The resident memory of the API and
of its workers is read every two seconds. The first sixth of the time is left out, in which caches fill. Growth that
levels off is less in the second half of the time than in all of it.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks.load.connections import ConnectionPool
from benchmarks.load.generator import count_statuses, find_percentile_ms, send_at_rate, send_in_turn
from benchmarks.load.private_gallery import run_private_service, write_gallery
from benchmarks.load.processes import read_role
from benchmarks.load.traffic import STEADY_SHARES, MixedTraffic

READ_SECONDS = 2.0
WARM_UP_SHARE = 1 / 6
CAPACITY_CLIENTS, CAPACITY_SECONDS = 8, 20.0
MAX_SLOPE_PERCENT = 1.0
"""The goal: growth of the resident memory in an hour."""
GROUPS = {"API": ["api"], "workers": ["worker default", "worker training"], "default workers": ["worker default"]}
"""What is reported together, by the roles of processes."""


class MemoryReading(NamedTuple):
    """The resident bytes of the processes of each role together, so many seconds after the start."""

    seconds: float
    sizes: Mapping[str, int]


def read_memory(seconds: float) -> MemoryReading:
    """Read the memory of the service that this process has started."""
    sizes = Counter[str]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            sizes[read_role(process)] += process.memory_info().rss
    return MemoryReading(seconds, sizes)


def find_slope(seconds: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the growth of a size in percent of its mean per hour, by least squares."""
    slope, _ = np.polyfit(seconds, sizes, 1)
    return float(100 * 3600 * slope / np.mean(sizes))


def describe_growth(readings: Sequence[MemoryReading], seconds: float) -> dict[str, Any]:
    """Return for each group its first and last size after the warm-up, and its slope then and in the second half.

    seconds: how long requests were offered
    """
    figures = dict[str, Any]()
    for name, roles in GROUPS.items():
        times = [reading.seconds for reading in readings]
        sizes = [sum(reading.sizes[role] for role in roles) for reading in readings]
        warm, half = (bisect_left(times, share * seconds) for share in (WARM_UP_SHARE, 0.5))
        figures[f"{name}, MiB"] = [round(sizes[i] / 2**20) for i in (warm, -1)]
        figures[f"{name}, % an hour"] = round(find_slope(times[warm:], sizes[warm:]), 2)
        figures[f"{name}, % an hour in the second half"] = round(find_slope(times[half:], sizes[half:]), 2)
    return figures


async def measure(
    pool: ConnectionPool, traffic: MixedTraffic, seconds: float, rate: float | None = None
) -> dict[str, Any]:
    """Offer requests, and read the memory meanwhile. rate: requests a second; None: half of what is answered at most"""
    if rate is None:
        crowd = await send_in_turn(pool, traffic, CAPACITY_CLIENTS, min(CAPACITY_SECONDS, seconds))
        rate = sum(record.is_accepted for record in crowd) / min(CAPACITY_SECONDS, seconds) / 2
    readings, clock = list[MemoryReading](), asyncio.get_running_loop().time
    start = clock()

    async def read_repeatedly() -> None:
        while True:
            readings.append(await asyncio.to_thread(read_memory, clock() - start))
            await asyncio.sleep(READ_SECONDS)

    reader = asyncio.create_task(read_repeatedly())
    records = await send_at_rate(pool, traffic, rate, seconds)
    reader.cancel()
    await pool.close()
    return {
        "rate": round(rate, 1),
        "statuses": count_statuses(records),
        "wrong answers": dict(Counter(record.kind for record in records if not record.is_right)),
        "p50, p99, ms": [round(find_percentile_ms(records, share), 1) for share in (0.5, 0.99)],
        **{kind: sum(record.kind == kind and record.is_accepted for record in records) for kind in STEADY_SHARES},
        **describe_growth(readings, seconds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gallery = write_gallery(Path(folder), args.faces)
        with run_private_service(Path(folder)) as (_, address):
            traffic = MixedTraffic(address, gallery, shares=STEADY_SHARES)
            figures = asyncio.run(measure(ConnectionPool(address), traffic, 60 * args.minutes, args.rate))
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures))
    slopes = figures["API, % an hour"], figures["workers, % an hour"]
    return 0 if max(slopes) <= MAX_SLOPE_PERCENT and not figures["wrong answers"] else 1


if __name__ == "__main__":
    sys.exit(main())
