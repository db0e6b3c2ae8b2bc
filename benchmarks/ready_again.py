"""Kill a service and start it again, and measure what it takes until it is ready, and what its processes hold idle.

    python -m benchmarks.ready_again [--faces 13000 1000000] [--dim 64] [--rounds 3] [--home HOME] [--json FILE]
        [--recogniser auto] [--options=--api-processes=2] [--later 1000]

The gallery is drawn and written directly. In each round the service is started without a snapshot of its index, which
it builds from the rows, and again with the snapshot that it wrote meanwhile. After IDLE_SECONDS, memory is read: of the
API, beside its goal of 1.4 times the bytes of the embeddings and 300 MiB, and of all processes; RSS counts what they
share once for each of them, PSS once in all. Then the service gets SIGKILL, all its processes at once. Beside the
seconds stand the processor seconds of all its processes until it was ready, which other load on the machine changes
less. Last, a worker is killed, until another one has the database open.

With --later, the thresholds are measured first, and so many people are enrolled then: after each start, the service is
ready once it is known whether the thresholds still hold.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from app.cli.private_service import LOG
from benchmarks.load.private_gallery import add_people, is_measured, write_gallery
from benchmarks.load.processes import read_role
from tests.raw_http import find_free_port

MAX_START_SECONDS = 300.0
POLL_SECONDS = 0.05
SNAPSHOTS = "indexes"


IDLE_SECONDS = 20.0
MiB = 2**20
ROWS, SNAPSHOT, WORKER = "from the rows", "from the snapshot", "a killed worker"


class Start(NamedTuple):
    """What a start took until /readyz was 200. processor: seconds of all processes by then"""

    seconds: float
    processor: float


class Memory(NamedTuple):
    """What all processes together hold, in MiB. api: the RSS of the API"""

    processes: int
    rss: float
    pss: float
    api: float


class MeasuredService:
    """`likeness serve` over one home, which is started and killed again and again."""

    def __init__(self, home: Path, recogniser: str, options: Sequence[str]) -> None:
        self.home, self.port, self.recogniser, self.options = home, find_free_port(), recogniser, options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Start:
        """Start it and wait until it is ready. Raises RuntimeError if it does not become so."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
        environment |= {"LIKENESS_HOME": str(self.home), "LIKENESS_DEFAULT_RECOGNISER": self.recogniser}
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port), *self.options]
        began = time.monotonic()
        with (self.home / LOG).open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while not self._is_ready():
            if time.monotonic() - began > MAX_START_SECONDS or self.process.poll() is not None:
                raise RuntimeError(f"the service did not become ready; see {self.home / LOG}")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
        return Start(seconds, self.read_processor_seconds())

    def read_processor_seconds(self) -> float:
        """Return what all processes have used since their start."""
        return sum(_read_processor_seconds(process) for process in self.list_processes())

    def list_processes(self) -> list[psutil.Process]:
        """The process that was started, and its children."""
        assert self.process is not None
        started = psutil.Process(self.process.pid)
        return [started, *(child for child in started.children() if child.status() != psutil.STATUS_ZOMBIE)]

    def read_memory(self) -> Memory:
        """Return what the processes hold."""
        processes = self.list_processes()
        read = [process.memory_full_info() for process in processes]
        api = max(memory.rss for memory, process in zip(read, processes, strict=True) if read_role(process) == "api")
        return Memory(len(read), sum(m.rss for m in read) / MiB, sum(m.pss for m in read) / MiB, api / MiB)

    def time_restart(self) -> tuple[float, float]:
        """Kill a worker. Returns the seconds until another has the database open, and its processor seconds by then."""
        before = self.list_processes()
        killed, began = before[-1], time.monotonic()
        killed.send_signal(signal.SIGKILL)
        while not (new := [p for p in self.list_processes() if p not in before and _has_database(p)]):
            time.sleep(POLL_SECONDS / 2)
        return time.monotonic() - began, _read_processor_seconds(new[0])

    def kill(self) -> None:
        """Kill the server and its workers."""
        assert self.process is not None
        for process in self.list_processes():
            process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait_for_snapshot(self) -> None:
        """Wait until the index is on disk."""
        while not any((self.home / SNAPSHOTS).rglob("*.json")):
            time.sleep(POLL_SECONDS)

    def delete_snapshots(self) -> None:
        """Delete the files of indexes; the key of the folder stays."""
        for path in (self.home / SNAPSHOTS).glob("*.*"):
            path.unlink()

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def _read_processor_seconds(process: psutil.Process) -> float:
    """Of a process, and of its children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _has_database(process: psutil.Process) -> bool:
    try:
        return any(".sqlite" in file.path for file in process.open_files())
    except psutil.Error:
        return False


def measure(service: MeasuredService, rounds: int, idle: float, raw_bytes: int) -> list[dict[str, Any]]:
    """Start the service both ways in each round, and return a row of medians for each. raw_bytes: of the embeddings"""
    starts: dict[str, list[Start]] = {ROWS: [], SNAPSHOT: []}
    memories: dict[str, list[Memory]] = {ROWS: [], SNAPSHOT: []}
    for _ in range(rounds):
        service.delete_snapshots()
        for name in starts:
            starts[name].append(service.start())
            service.wait_for_snapshot()
            time.sleep(idle)
            memories[name].append(service.read_memory())
            service.kill()
    return [_summarise(name, starts[name], memories[name], raw_bytes) for name in starts]


def enrol_later(service: MeasuredService, people: int, dim: int) -> None:
    """Let a service measure its thresholds, and enrol people then, as many as do not make another measurement due."""
    service.start()
    while not is_measured(service.home):
        time.sleep(POLL_SECONDS)
    add_people(service.home, people, dim)
    service.kill()


def _summarise(name: str, starts: Sequence[Start], memories: Sequence[Memory], raw_bytes: int) -> dict[str, Any]:
    seconds, processor = (statistics.median(column) for column in zip(*starts, strict=True))
    processes, rss, pss, api = (statistics.median(column) for column in zip(*memories, strict=True))
    row = {"seconds": seconds, "processor_seconds": processor, "api_mib": api, "rss_mib": rss, "pss_mib": pss}
    row |= {"processes": processes, "api_goal_mib": 1.4 * raw_bytes / MiB + 300}
    return {"start": name} | {key: round(value, 2) for key, value in row.items()}


def compare(faces: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a service with so many faces, and return a row for each way to start."""
    with tempfile.TemporaryDirectory() as folder:
        home = args.home or Path(folder)
        if not (home / "likeness.sqlite").exists():
            write_gallery(home, faces, args.dim)
        service = MeasuredService(home, args.recogniser, args.options.split())
        if args.later:
            enrol_later(service, args.later, args.dim)
        rows = [{"faces": faces} | row for row in measure(service, args.rounds, args.idle, 4 * args.dim * faces)]
        service.start()
        time.sleep(args.idle)
        seconds, processor = service.time_restart()
        service.kill()
        return [*rows, {"faces": faces, "start": WORKER, "seconds": seconds, "processor_seconds": processor}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[13_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds before memory is read")
    parser.add_argument("--recogniser", default="lbp", help="of new collections: lbp, or auto for the installed one")
    parser.add_argument("--options", default="", help="of `likeness serve`, such as --api-processes=2")
    parser.add_argument("--later", type=int, default=0, help="people who are enrolled after the measurement")
    parser.add_argument("--home", type=Path, help="keeps the gallery here, for further runs; of one number of faces")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for faces in args.faces:
        for row in compare(faces, args):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
