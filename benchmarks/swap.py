"""Move the champion to a model whose index is not loaded, while searches come in, and count errors and latency.

    python -m benchmarks.swap [--faces 1000000] [--rate 40] [--seconds 15] [--json FILE]

Searches by vector come at random moments, `rate` a second on average, to a service with one API process: first for
`seconds` while nothing else happens (quiet), then until `SETTLE_SECONDS` after the new model serves. The process builds
the index of the new model from the rows, beside the old one, and swaps. Both models have the same embeddings, so that
every answer can be checked. The pointer is moved in the tables: what a publication does before that runs in workers.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from app.config import Settings
from app.resources import open_resources
from benchmarks.load.connections import ConnectionPool
from benchmarks.load.generator import Record, find_percentile_ms, send_at_rate
from benchmarks.load.private_gallery import COLLECTION, run_private_service, write_gallery
from benchmarks.load.processes import find_api_process
from benchmarks.load.traffic import MixedTraffic
from tests.rows import GalleryWriter

NEW_MODEL, OLD_MODEL = "m-2", "m-1"
WARM_UP_SECONDS = 3.0
BLOCK_SECONDS = 1.0
SETTLE_SECONDS = 2.0
MAX_SWAP_SECONDS = 240.0
MiB = 2**20


def read_model(client: httpx.Client) -> str:
    """Return the model that serves."""
    return str(client.get("/info").raise_for_status().json()["deployments"][0]["model"])


def count_errors(records: Sequence[Record]) -> int:
    """Return how many searches were refused, failed, or had a wrong answer."""
    return sum(not record.is_accepted or not record.is_right for record in records)


async def measure(
    client: httpx.Client, traffic: MixedTraffic, home: Path, rate: float, seconds: float
) -> dict[str, Any]:
    """Load the service before, and during the swap, and return the figures."""
    pool, api = ConnectionPool(traffic.address), find_api_process()
    await send_at_rate(pool, traffic, rate, WARM_UP_SECONDS)
    quiet = await send_at_rate(pool, traffic, rate, seconds)
    memory = [api.memory_info().rss]
    with open_resources(Settings(home=home, default_recogniser="lbp")) as resources:
        GalleryWriter(resources, COLLECTION).point(champion=NEW_MODEL, challenger=None, previous=OLD_MODEL)
    beside, began, served_at = list[Record](), time.monotonic(), float("inf")
    while time.monotonic() < served_at + SETTLE_SECONDS:
        beside += await send_at_rate(pool, traffic, rate, BLOCK_SECONDS)
        memory.append(api.memory_info().rss)
        if served_at == float("inf") and await asyncio.to_thread(read_model, client) == NEW_MODEL:
            served_at = time.monotonic()
        assert time.monotonic() < began + MAX_SWAP_SECONDS, "it was not swapped"
    await pool.close()
    quiet_ms, beside_ms = (
        [round(find_percentile_ms(records, share), 2) for share in (0.5, 0.99)] for records in (quiet, beside)
    )
    return {
        "swap_seconds": round(served_at - began, 1),
        "searches": len(beside),
        "quiet_errors": count_errors(quiet),
        "errors": count_errors(beside),
        "quiet_p50_p99_ms": quiet_ms,
        "beside_p50_p99_ms": beside_ms,
        "p99_ratio": round(beside_ms[1] / quiet_ms[1], 2),
        "memory_before_and_most_mib": [round(memory[0] / MiB), round(max(memory) / MiB)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=40)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        gallery = write_gallery(home, args.faces, has_challenger=True)
        with run_private_service(home) as (client, address):
            while client.get("/readyz").status_code != httpx.codes.OK:
                time.sleep(0.1)
            traffic = MixedTraffic(address, gallery, shares={"vector": 1.0})
            measured = asyncio.run(measure(client, traffic, home, args.rate, args.seconds))
    row = {"faces": args.faces} | measured
    print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
