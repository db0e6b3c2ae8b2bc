"""Time a new user's way from a clone to the first right match, by the README's commands."""

import os
import re
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.first_hour_photos import QUICK, PhotoSets, write_tar

ROOT = Path(__file__).resolve().parents[1]
INSTALL_SECONDS = 1800
KEY = re.compile(r"admin key \(shown once\): (\S+)")

ACTIONS = (
    "git clone {checkout} {clone}",
    "make run PORT={port}",
    "curl -sf -X PUT localhost:{port}/v1/collections/staff -H 'Authorization: Bearer {key}'",
    "curl -sf -X POST localhost:{port}/v1/collections/staff:import -H 'Authorization: Bearer {key}'"
    " -H 'Content-Type: application/x-tar' --data-binary @{photos}",
    "curl -sf -X POST localhost:{port}/v1/collections/staff/search -H 'Authorization: Bearer {key}' -F file=@{query}",
)
"""All are from the README's "Start" and "First search", with other names, ports and paths."""


def follow_readme(data: Path, folder: Path) -> dict[str, Any]:
    """Clone, install, start, import 150 people, and search until the right one comes first; return the seconds of each.

    Packages are installed from an index. Raises RuntimeError if an action fails, and subprocess errors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = PhotoSets(data).draw(0, QUICK)
    write_tar(draw.gallery, folder / "photos.tar")
    (folder / "query.jpg").write_bytes(draw.queries[0].data)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {
        "checkout": ROOT, "clone": folder / "likeness", "port": port,
        "photos": folder / "photos.tar", "query": folder / "query.jpg",
    }  # fmt: skip
    seconds: list[float] = []
    began = time.perf_counter()
    subprocess.run(ACTIONS[0].format(**values), shell=True, check=True, capture_output=True)
    seconds.append(time.perf_counter() - began)
    process = start(ACTIONS[1].format(**values), folder / "likeness")
    try:
        values["key"] = read_key(process)
        seconds.append(time.perf_counter() - began - sum(seconds))
        for action in ACTIONS[2:4]:
            subprocess.run(action.format(**values), shell=True, check=True, capture_output=True)
            seconds.append(time.perf_counter() - began - sum(seconds))
        searches = search_until_right(ACTIONS[4].format(**values), draw.queries[0].person)
        seconds.append(time.perf_counter() - began - sum(seconds))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    return {"actions": len(ACTIONS), "seconds": [round(s, 1) for s in seconds], "searches": searches}


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command in its own process group, without settings of the service in its environment."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LIKENESS_", "PYTHON", "VIRTUAL_ENV"))}
    return subprocess.Popen(
        command, shell=True, cwd=folder, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def read_key(process: subprocess.Popen[str]) -> str:
    """Return the admin key once the service listens. Raises RuntimeError if it ends before."""
    assert process.stdout is not None
    until, printed, key = time.monotonic() + INSTALL_SECONDS, "", None
    while time.monotonic() < until:
        if not select.select([process.stdout], [], [], 1)[0]:
            continue
        output = process.stdout.readline()
        if not output:
            break
        printed += output
        match = KEY.search(output)
        key = match[1] if match else key
        if key and "listens on" in output:
            wait_until_listening(output)
            return key
    raise RuntimeError(f"no key was printed: {printed[-2000:]}")


def wait_until_listening(output: str) -> None:
    port = int(re.findall(r":(\d+)", output)[0])
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}")


def search_until_right(command: str, person: str) -> int:
    """Search until the right person comes first, since an import takes time; return the number of searches."""
    for attempt in range(1, 601):
        done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
        if done.returncode == 0 and f'"external_id":"{person}"' in first_match(done.stdout):
            return attempt
        time.sleep(0.5)
    raise RuntimeError(f"the right person never came first: {done.stdout[:500]}")


def first_match(answer: str) -> str:
    """Return the response's JSON text up to the end of the first match's person, without spaces."""
    text = answer.replace(" ", "")
    start = text.find('"matches":[')
    return text[start : text.find("}", start)] if start >= 0 else ""


if __name__ == "__main__":
    raise SystemExit("run python -m benchmarks.first_hour --clone")
