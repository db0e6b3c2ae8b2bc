"""Kill a service and start it again, and measure what it takes until it is ready, and what its processes hold idle.

    python -m benchmarks.ready_again [--faces 100000] [--dim 128] [--rounds 3] [--home HOME]
        [--recogniser auto] [--options=--api-processes=2]

The gallery is drawn and written directly. The first start writes the snapshot of the index. Then the service gets
SIGKILL, all its processes at once, and starts anew; besides the seconds, the processor seconds of all its processes are
measured, which other load on the machine changes less. After IDLE_SECONDS, the resident memory of its processes is
summed: RSS counts what they share once for each of them, PSS once in all. Last, a worker is killed, until another one
has the database open.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from app.cli.private_service import LOG
from benchmarks.load.private_gallery import write_gallery

MAX_START_SECONDS = 300.0
POLL_SECONDS = 0.02
SNAPSHOTS = "indexes"


IDLE_SECONDS = 20.0
MiB = 2**20


class Start(NamedTuple):
    """What a start took until /readyz was 200. processor: seconds of all processes by then"""

    seconds: float
    processor: float


class Memory(NamedTuple):
    """What all processes together hold, in MiB."""

    processes: int
    rss: float
    pss: float


class MeasuredService:
    """`likeness serve` over one home, which is started and killed again and again."""

    def __init__(self, home: Path, recogniser: str, options: Sequence[str]) -> None:
        self.home, self.port, self.recogniser, self.options = home, _find_free_port(), recogniser, options
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
        read = [process.memory_full_info() for process in self.list_processes()]
        return Memory(len(read), sum(m.rss for m in read) / MiB, sum(m.pss for m in read) / MiB)

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


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recogniser", default="lbp", help="of new collections: lbp, or auto for the installed one")
    parser.add_argument("--options", default="", help="of `likeness serve`, such as --api-processes=2")
    parser.add_argument("--home", type=Path, help="keeps the gallery here, for further runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = args.home or Path(folder)
        if not (home / "likeness.sqlite").exists():
            write_gallery(home, args.faces, args.dim)
        service = MeasuredService(home, args.recogniser, args.options.split())
        _show("from the rows, first start", service.start())
        service.wait_for_snapshot()
        service.kill()
        for _ in range(args.rounds):
            _show("after SIGKILL", service.start())
            time.sleep(IDLE_SECONDS)
            processes, rss, pss = service.read_memory()
            print(
                f"idle: {processes} processes, RSS {rss:.0f} MiB, PSS {pss:.0f} MiB; processor seconds since "
                f"the start: {service.read_processor_seconds():.2f}",
                flush=True,
            )
            seconds, processor = service.time_restart()
            print(f"a killed worker is back after {seconds:.2f} s, processor seconds: {processor:.2f}", flush=True)
            service.kill()


def _show(name: str, start: Start) -> None:
    print(f"{name:28s} {start.seconds:6.2f} s   processor seconds: {start.processor:.2f}", flush=True)


if __name__ == "__main__":
    main()
