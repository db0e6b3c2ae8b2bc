"""Run a service of its own while a command runs, on a free port and with its own home."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.storage.private_files import create_home

MAX_START_SECONDS = 120
LOG = "service.log"
MAX_PRINTED_LINES = 40


@contextmanager
def run_service(home: Path, **settings: str) -> Iterator[httpx.Client]:
    """Start a service in this home, yield a client with an administrator's key, and stop the service.

    The home is kept, so that the next run finds the data of this one. settings: without the prefix LIKENESS_
    If the block raises, the end of the service's log is printed.
    Raises RuntimeError if the service does not become ready.
    """
    create_home(home)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith("LIKENESS_")}
    env |= {"LIKENESS_HOME": str(home)} | {f"LIKENESS_{k.upper()}": v for k, v in settings.items()}
    likeness = [sys.executable, "-m", "app.cli"]
    key = subprocess.run(
        [*likeness, "keys", "create", "--new", "--role", "admin"], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()
    with (home / LOG).open("ab") as log:
        process = subprocess.Popen([*likeness, "serve", "--port", str(port)], env=env, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"x-api-key": key}, timeout=600) as client:
            _wait_until_ready(client, process, home)
            yield client
    except Exception:
        _print_log(home / LOG)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + MAX_START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
        time.sleep(0.1)
    raise RuntimeError(f"the service did not become ready; see {home / LOG}")


def _print_log(path: Path) -> None:
    """Print the end of the service's log, since a home that is temporary is removed with it."""
    lines = path.read_text(errors="replace").splitlines()[-MAX_PRINTED_LINES:] if path.exists() else []
    if lines:
        print(f"The last lines of the service's log ({path}):", *lines, sep="\n  ", file=sys.stderr)
