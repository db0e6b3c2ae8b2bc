"""Offer a service twice what it can answer, and compare the answers that it gives with those of a quiet one.

    python -m benchmarks.overload [--minutes 10] [--faces 20000] [--factor 2] [--json FILE]

A private service with drawn faces gets mixed traffic (benchmarks/load/traffic.py): first from one client that sends one
request after another (quiet), then from eight such clients (the capacity), and at last at `factor` times the capacity
and at random moments, whatever the answers. A request's time begins when it was due. The generator shares the cores
with the service: where it may, it raises its priority, so that requests are sent when they are due.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.load.connections import ConnectionPool
from benchmarks.load.generator import Record, count_statuses, find_percentile_ms, send_at_rate, send_in_turn
from benchmarks.load.private_gallery import run_private_service, write_gallery
from benchmarks.load.traffic import SHARES, MixedTraffic

WARM_UP_SECONDS = 5.0
CAPACITY_CLIENTS = 8
GENERATOR_NICENESS = -10
MAX_RATIO = 3.0
"""The goal: p99 of accepted requests under load, over that of the quiet service."""


async def measure(
    pool: ConnectionPool, traffic: MixedTraffic, *, factor: float, quiet_seconds: float, loaded_seconds: float
) -> dict[str, Any]:
    """Measure the quiet service, its capacity, and the service under load."""
    await send_in_turn(pool, traffic, CAPACITY_CLIENTS, WARM_UP_SECONDS)
    quiet = await send_in_turn(pool, traffic, 1, quiet_seconds)
    crowd = await send_in_turn(pool, traffic, CAPACITY_CLIENTS, quiet_seconds / 2)
    capacity = sum(record.is_accepted for record in crowd) / (quiet_seconds / 2)
    loaded = await send_at_rate(pool, traffic, factor * capacity, loaded_seconds)
    await pool.close()
    return summarise(quiet, loaded, capacity, loaded_seconds)


def summarise(quiet: Sequence[Record], loaded: Sequence[Record], capacity: float, seconds: float) -> dict[str, Any]:
    """Return the figures. Times are in milliseconds, rates in requests a second."""
    accepted = [record for record in loaded if record.is_accepted]
    refused = [record for record in loaded if record.is_refused]
    before, after = find_percentile_ms(quiet, 0.99), find_percentile_ms(accepted, 0.99)
    return {
        "capacity": round(capacity, 1),
        "offered": round(len(loaded) / seconds, 1),
        "answered": round(len(accepted) / seconds, 1),
        "statuses": count_statuses(loaded),
        "wrong answers": sum(not record.is_right for record in (*quiet, *loaded)),
        "refused, %": round(100 * len(refused) / max(1, len(loaded)), 1),
        "quiet p50, p99": [round(find_percentile_ms(quiet, 0.5), 1), round(before, 1)],
        "loaded p50, p99": [round(find_percentile_ms(accepted, 0.5), 1), round(after, 1)],
        "ratio of p99": round(after / before, 2),
        "refusal p50, p99": [round(find_percentile_ms(refused, share), 1) for share in (0.5, 0.99)],
        "by kind": {kind: _summarise_kind(kind, quiet, loaded) for kind in SHARES},
    }


def _summarise_kind(kind: str, quiet: Sequence[Record], loaded: Sequence[Record]) -> dict[str, Any]:
    own = [record for record in loaded if record.kind == kind]
    accepted = [record for record in own if record.is_accepted]
    return {
        "quiet p50, p99": [round(find_percentile_ms((r for r in quiet if r.kind == kind), s), 1) for s in (0.5, 0.99)],
        "loaded p50, p99": [round(find_percentile_ms(accepted, share), 1) for share in (0.5, 0.99)],
        "refused, %": round(100 * sum(r.is_refused for r in own) / max(1, len(own)), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the load lasts")
    parser.add_argument("--quiet-seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=2.0, help="times the capacity")
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--setting", action="append", default=[], help="of the service: name=value")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gallery = write_gallery(Path(folder), args.faces)
        settings = dict(setting.split("=", 1) for setting in args.setting)
        with run_private_service(Path(folder), **settings) as (_, address):
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, GENERATOR_NICENESS)
            pool = ConnectionPool(address)
            traffic = MixedTraffic(address, gallery)
            durations = {"quiet_seconds": args.quiet_seconds, "loaded_seconds": 60 * args.minutes}
            figures = asyncio.run(measure(pool, traffic, factor=args.factor, **durations))
    figures["niceness of the generator"] = os.getpriority(os.PRIO_PROCESS, 0)
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures))
    is_met = figures["ratio of p99"] <= MAX_RATIO and not figures["wrong answers"]
    print(f"p99 of accepted requests: {figures['ratio of p99']} times the quiet one; goal: {MAX_RATIO:g}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
