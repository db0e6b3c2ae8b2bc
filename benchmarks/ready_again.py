"""Kill a service and start it again, and measure what it takes until it is ready.

    python -m benchmarks.ready_again [--faces 100000] [--dim 128] [--rounds 3] [--home HOME]

The gallery is drawn and written directly. The first start writes the snapshot of the index. Then the service gets
SIGKILL, all its processes at once, and starts anew; besides the seconds, the processor seconds of the API and of its
workers are measured, which other load on the machine changes less.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from app.cli.private_service import LOG
from benchmarks.load.private_gallery import write_gallery

MAX_START_SECONDS = 300.0
POLL_SECONDS = 0.02
SNAPSHOTS = "indexes"


class Start(NamedTuple):
    """What a start took until /readyz was 200. api and workers: processor seconds by then"""

    seconds: float
    api: float
    workers: float


class MeasuredService:
    """`likeness serve` over one home, which is started and killed again and again."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, _find_free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Start:
        """Start it and wait until it is ready. Raises RuntimeError if it does not become so."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
        environment |= {"LIKENESS_HOME": str(self.home), "LIKENESS_DEFAULT_RECOGNISER": "lbp"}
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port)]
        began = time.monotonic()
        with (self.home / LOG).open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        while not self._is_ready():
            if time.monotonic() - began > MAX_START_SECONDS or self.process.poll() is not None:
                raise RuntimeError(f"the service did not become ready; see {self.home / LOG}")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
        server = psutil.Process(self.process.pid)
        workers = [_read_processor_seconds(worker) for worker in server.children()]
        return Start(seconds, _read_processor_seconds(server), sum(workers))

    def kill(self) -> None:
        """Kill the server and its workers."""
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        for process in (server, *server.children(recursive=True)):
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
    times = process.cpu_times()
    return float(times.user + times.system)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--home", type=Path, help="keeps the gallery here, for further runs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = args.home or Path(folder)
        if not (home / "likeness.sqlite").exists():
            write_gallery(home, args.faces, args.dim)
        service = MeasuredService(home)
        _show("from the rows, first start", service.start())
        service.wait_for_snapshot()
        service.kill()
        for _ in range(args.rounds):
            _show("after SIGKILL", service.start())
            service.kill()


def _show(name: str, start: Start) -> None:
    print(
        f"{name:28s} {start.seconds:6.2f} s   processor seconds: API {start.api:.2f}, workers {start.workers:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
