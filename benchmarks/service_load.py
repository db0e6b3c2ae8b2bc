"""Searches by vector over HTTP, against the least FastAPI program and against two processes of the API.

    python -m benchmarks.service_load [--faces 13000 100000] [--clients 1 16] [--rounds 5] [--seconds 4]
        [--index-device cpu] [--json FILE]

All programs hold the same drawn vectors, in indexes with the same number of cells of which the same number is probed.
They are loaded in turn, round after round, by this process, which takes a share of the same cores. The least program
searches on the CPU; `--index-device auto` has the service search on the GPU if FAISS finds one.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.load.connections import Address, Answer, ConnectionPool
from benchmarks.load.private_gallery import run_private_service, write_gallery
from benchmarks.load.processes import find_api_processes
from benchmarks.load.traffic import Gallery
from ml.indexes import default_cell_count
from tests.raw_http import find_free_port

QUERIES = 512
DIM = 64
WARM_UP_SECONDS = 2.0
ONE, TWO, LEAST = "one API process", "two API processes", "least program"

Row = dict[str, object]


class Load(NamedTuple):
    """What a program answered in a round. cpu_ms: processor time of the program for each answer"""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Target(NamedTuple):
    """A program to load: where it listens, its requests, and its processes."""

    address: Address
    requests: list[bytes]
    processes: list[psutil.Process]

    def read_processor_seconds(self) -> float:
        """Return what the program has used so far."""
        return float(sum(sum(process.cpu_times()[:2]) for process in self.processes))


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

    used = target.read_processor_seconds()
    await asyncio.gather(*(send_one_by_one(client) for client in range(clients)))
    used = target.read_processor_seconds() - used
    await pool.close()
    p50, p99 = 1000 * np.quantile(times, [0.5, 0.99])
    return Load(len(times) / seconds, float(p50), float(p99), 1000 * used / len(times))


@contextmanager
def run_limit_server(gallery: Gallery, folder: Path, cells: int, probed: int) -> Iterator[tuple[Address, int]]:
    """Run the least program over the rows of a gallery, and yield its address and process id."""
    np.save(folder / "vectors.npy", gallery.rows)
    port = find_free_port()
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


def compare(
    faces: int, client_counts: Sequence[int], rounds: int, seconds: float, index_device: str = "cpu"
) -> list[Row]:
    """Load the programs in turn, and return a row for each number of clients."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        gallery = write_gallery(folder / ONE, faces, DIM)
        shutil.copytree(folder / ONE, folder / TWO)
        targets = {ONE: run_target(stack, gallery, folder / ONE, index_device=index_device)}
        probed = json.loads(wait_until_answered(targets[ONE]).body)["m"]
        targets[TWO] = run_target(stack, gallery, folder / TWO, index_device=index_device, api_processes="2")
        served = stack.enter_context(run_limit_server(gallery, folder, default_cell_count(faces), probed))
        targets[LEAST] = Target(served[0], format_searches(served[0], "/search", gallery), [psutil.Process(served[1])])
        for target in targets.values():
            wait_until_answered(target)
            asyncio.run(load(target, 4, WARM_UP_SECONDS))
        return [_compare(faces, targets, clients, rounds, seconds) for clients in client_counts]


def run_target(stack: ExitStack, gallery: Gallery, home: Path, **settings: str) -> Target:
    """Run a service over a gallery until the stack is closed. settings: as `run_private_service`"""
    others = set(find_api_processes())
    _, address = stack.enter_context(run_private_service(home, **settings))
    path = f"/v1/collections/{gallery.collection}/search:by-embedding"
    processes = [process for process in find_api_processes() if process not in others]
    return Target(address, format_searches(address, path, gallery), processes)


def _compare(faces: int, targets: dict[str, Target], clients: int, rounds: int, seconds: float) -> Row:
    loads = [
        {name: asyncio.run(load(target, clients, seconds)) for name, target in targets.items()} for _ in range(rounds)
    ]
    row: Row = {"faces": faces, "clients": clients}
    for name in targets:
        columns = zip(*(of_round[name] for of_round in loads), strict=True)
        row[name] = [round(statistics.median(column), 2) for column in columns]
    for name in (TWO, LEAST):
        first, second = (TWO, ONE) if name == TWO else (ONE, LEAST)
        ratios = [of_round[first].rate / of_round[second].rate for of_round in loads]
        row[f"{first} / {second}"] = [
            round(value, 2) for value in (statistics.median(ratios), min(ratios), max(ratios))
        ]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[13_000, 100_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--index-device", choices=["auto", "cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print("searches a second, ms at p50 and p99, ms of processor time; ratio: median, least, most", flush=True)
    rows: list[Row] = []
    for faces in args.faces:
        for row in compare(faces, args.clients, args.rounds, args.seconds, args.index_device):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
