"""Searches by vector over HTTP against the least FastAPI program: `python -m benchmarks.service_load [--faces N ...]`.

Both programs hold the same drawn vectors, in indexes with the same number of cells of which the same number is probed,
each in a process of its own. They are loaded in turn, round after round, by this process.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.load.connections import Address, Answer, ConnectionPool
from benchmarks.load.private_gallery import run_private_service, write_gallery
from benchmarks.load.processes import find_api_process
from benchmarks.load.traffic import Gallery
from ml.indexes import default_cell_count
from tests.conftest import free_port

QUERIES = 512
DIM = 64


class Load(NamedTuple):
    """What a program answered in a round. cpu_ms: processor time of the program for each answer"""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Target(NamedTuple):
    """A program to load: where it listens, its requests, and its process."""

    address: Address
    requests: list[bytes]
    process: psutil.Process


async def load(target: Target, clients: int, seconds: float) -> Load:
    """Have each client send one search after another. Raises AssertionError if an answer is not 200."""
    pool, times, end = ConnectionPool(target.address), list[float](), time.perf_counter() + seconds

    async def send_one_by_one(first: int) -> None:
        turn = first
        while (start := time.perf_counter()) < end:
            answer = await pool.send(target.requests[turn % len(target.requests)])
            assert answer.status == 200, answer
            times.append(time.perf_counter() - start)
            turn += clients

    used = sum(target.process.cpu_times()[:2])
    await asyncio.gather(*(send_one_by_one(client) for client in range(clients)))
    used = sum(target.process.cpu_times()[:2]) - used
    await pool.close()
    p50, p99 = 1000 * np.quantile(times, [0.5, 0.99])
    return Load(len(times) / seconds, float(p50), float(p99), 1000 * used / len(times))


@contextmanager
def run_limit_server(gallery: Gallery, folder: Path, cells: int, probed: int) -> Iterator[tuple[Address, int]]:
    """Run the least program over the rows of a gallery, and yield its address and process id."""
    np.save(folder / "vectors.npy", gallery.rows)
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.limit_server", str(folder / "vectors.npy"), str(port)]
    process = subprocess.Popen([*command, str(cells), str(probed)])
    try:
        yield Address("127.0.0.1", port, ""), process.pid
    finally:
        process.terminate()
        process.wait()


def format_searches(address: Address, path: str, gallery: Gallery) -> list[bytes]:
    """Return the requests that search for faces of the gallery."""
    chosen = np.random.default_rng(0).choice(len(gallery.rows), QUERIES)
    vectors = (gallery.rows[chosen] + np.float32(1e-3)).tolist()
    return [address.format_request("POST", path, json.dumps({"vector": vector}).encode()) for vector in vectors]


def wait_until_answered(target: Target) -> Answer:
    """Wait until a search is answered 200, and return the answer."""

    async def send() -> Answer:
        pool = ConnectionPool(target.address)
        try:
            return await pool.send(target.requests[0])
        finally:
            await pool.close()

    deadline = time.monotonic() + 600
    while (answer := asyncio.run(send())).status != 200:
        assert time.monotonic() < deadline, target.address
        time.sleep(0.1)
    return answer


def compare(faces: int, client_counts: Sequence[int], rounds: int, seconds: float) -> list[dict[str, object]]:
    """Load the service and the least program in turn, and return a row for each number of clients."""
    cells = default_cell_count(faces)
    with tempfile.TemporaryDirectory() as folder:
        gallery = write_gallery(Path(folder) / "home", faces, DIM)
        with run_private_service(Path(folder) / "home") as (_, address):
            path = f"/v1/collections/{gallery.collection}/search:by-embedding"
            service = Target(address, format_searches(address, path, gallery), find_api_process())
            probed = json.loads(wait_until_answered(service).body)["m"]
            with run_limit_server(gallery, Path(folder), cells, probed) as (limit_address, limit_pid):
                requests = format_searches(limit_address, "/search", gallery)
                limit = Target(limit_address, requests, psutil.Process(limit_pid))
                wait_until_answered(limit)
                for target in (service, limit):
                    asyncio.run(load(target, 4, 2))
                return [_compare(faces, service, limit, clients, rounds, seconds) for clients in client_counts]


def _compare(
    faces: int, service: Target, limit: Target, clients: int, rounds: int, seconds: float
) -> dict[str, object]:
    loads = [[asyncio.run(load(target, clients, seconds)) for target in (service, limit)] for _ in range(rounds)]
    row: dict[str, object] = {"faces": faces, "clients": clients}
    for name, values in zip(("service", "least program"), zip(*loads, strict=True), strict=True):
        row[name] = [round(statistics.median(column), 2) for column in zip(*values, strict=True)]
    ratios = [of_service.rate / of_limit.rate for of_service, of_limit in loads]
    row["ratio of rates"] = [round(value, 2) for value in (statistics.median(ratios), min(ratios), max(ratios))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faces", type=int, nargs="+", default=[13_000, 100_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    args = parser.parse_args()
    print("searches a second, ms at p50 and p99, ms of processor time; ratio: median, least, most", flush=True)
    for faces in args.faces:
        for row in compare(faces, args.clients, args.rounds, args.seconds):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
