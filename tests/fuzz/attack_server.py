"""Send hostile images and bodies to a service that is started for it, and report statuses, slowest answer and memory.

python -m tests.fuzz.attack_server --cases 20000 --clients 4

Ends with status 1 if any answer is 5xx, but 503 with Retry-After, or if a goal is missed.
"""

import argparse
import base64
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from tests.fuzz.hostile_images import HostileImages
from tests.raw_http import find_free_port
from tests.service_subprocess import ServiceSubprocess

MAX_PEAK_MEGABYTES = 1_200
MAX_SECONDS = 2.0
PATHS = ("collections/staff/search", "collections/staff/faces", "verify?collection=staff")
MIB = 2**20
WARM_UP_IMAGES = 400
PART_CASES = 250


class Answer(NamedTuple):
    """What a request was answered. kind: of its image or body; size: in bytes; fault: the text of a forbidden answer"""

    seconds: float
    status: str
    kind: str
    size: int
    fault: str = ""


class Attacker:
    """Sends hostile requests one after the other."""

    def __init__(self, client: httpx.Client, seed: int) -> None:
        self.client, self.images, self.rng = client, HostileImages(seed), np.random.default_rng(seed)
        self.drawing_seconds = 0.0  # of the last request

    def send(self) -> tuple[str, int, httpx.Response]:
        """Send one request. Returns its kind, its bytes and the answer."""
        path, started = f"/v1/{PATHS[self.rng.integers(len(PATHS))]}", time.perf_counter()
        if self.rng.random() < 0.1:
            kind, body, content_type = self._draw_body()
            self.drawing_seconds = time.perf_counter() - started
            return kind, len(body), self.client.post(path, content=body, headers={"content-type": content_type})
        kind, data = self.images.draw()
        self.drawing_seconds = time.perf_counter() - started
        if self.rng.random() < 0.3:
            text = base64.b64encode(data).decode()
            body = {"images": [text, text]} if "verify" in path else {"image": text}
            return f"{kind}, JSON", len(text), self.client.post(path, json=body)
        files = [("file", ("photo", data))] * (2 if "verify" in path else 1)
        return kind, len(data), self.client.post(path, files=files)

    def _draw_body(self) -> tuple[str, bytes, str]:
        """Draw a body that holds no image: malformed, deep, or large."""
        form = "multipart/form-data; boundary=x"
        part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        size = int(self.images.choose(1_000, MIB, 20 * MIB))
        bodies = (
            ("deep JSON", b"[" * min(size, 2 * MIB), "application/json"),
            ("zeros as base64", b'{"image": "' + b"A" * size + b'"}', "application/json"),
            ("blanks as base64", b'{"image": "' + b" " * size + b'"}', "application/json"),
            ("no JSON", self.rng.bytes(size), "application/json"),
            ("unended form", part + self.rng.bytes(size), form),
            ("many parts", (part + b"\r\n") * min(5_000, size) + b"--x--", form),
            ("zeros as a photo", part + bytes(size) + b"\r\n--x--", form),
            ("many headers", b"--x\r\n" + b"a: b\r\n" * min(20_000, size) + b"\r\n--x--", form),
            ("other type", self.rng.bytes(min(size, MIB)), "text/plain"),
        )
        return bodies[self.rng.integers(len(bodies))]


def send_requests(url: str, headers: dict[str, str], seed: int, cases: int) -> list[Answer]:
    """Send `cases` requests one after the other, and return what they were answered."""
    answers = []
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        attacker = Attacker(client, seed)
        for _ in range(cases):
            started = time.perf_counter()
            kind, size, answer = attacker.send()
            seconds = time.perf_counter() - started - attacker.drawing_seconds
            answers.append(describe_answer(seconds, answer, kind, size))
    return answers


def describe_answer(seconds: float, answer: httpx.Response, kind: str, size: int) -> Answer:
    """Describe an answer. A 5xx is a fault, but 503 with Retry-After is not."""
    status = answer.status_code
    is_fault = status >= 500 and not (status == 503 and answer.headers.get("Retry-After"))
    code = "" if status < 300 else answer.json().get("code", "")
    return Answer(round(seconds, 2), f"{status} {code}".strip(), kind, size, answer.text[:200] if is_fault else "")


def attack(service: ServiceSubprocess, cases: int, clients: int, seed: int) -> list[Answer]:
    """Send `cases` requests from `clients` processes, which inherit the bombs that are drawn first."""
    service.client.put("/v1/collections/staff", json={})
    images = HostileImages(seed)
    for _ in range(WARM_UP_IMAGES):
        images.draw()
    target = str(service.client.base_url), {"x-api-key": service.client.headers["x-api-key"]}
    with ProcessPoolExecutor(clients, get_context("fork")) as pool:
        parts = [min(PART_CASES, cases - first) for first in range(0, cases, PART_CASES)]
        futures = [pool.submit(send_requests, *target, seed * 1_000 + n, part) for n, part in enumerate(parts)]
        answers, started = list[Answer](), time.perf_counter()
        for future in as_completed(futures):
            answers += future.result()
            slowest = max(future.result()).seconds
            print(
                f"{time.perf_counter() - started:.0f} s: {len(answers):,} of {cases:,}; slowest of these {slowest} s",
                flush=True,
            )
        return answers


def read_megabytes(pid: int, name: str) -> int:
    """Return a figure of a process in MB: VmHWM, the peak of its resident memory, or VmRSS."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="likeness-attack-") as home:
        service = ServiceSubprocess(Path(home), find_free_port())
        try:
            [api] = service.list_processes("api")
            idle = read_megabytes(api.pid, "VmRSS")
            started = time.perf_counter()
            answers = attack(service, arguments.cases, arguments.clients, arguments.seed)
            seconds = time.perf_counter() - started
            peak, kept = (read_megabytes(api.pid, name) for name in ("VmHWM", "VmRSS"))
            is_alive = service.client.get("/livez").status_code == 200
        finally:
            service.stop()
    slowest = sorted(answers, reverse=True)[:5]
    faults = [answer for answer in answers if answer.fault]
    print(f"{len(answers):,} requests by {arguments.clients} clients in {seconds:.0f} s")
    print(f"statuses: {dict(sorted(Counter(answer.status for answer in answers).items()))}")
    print(f"API process: {idle} MB idle, {peak} MB at its peak, {kept} MB afterwards; alive: {is_alive}")
    print(*(f"slowest: {a.seconds} s, {a.status}, {a.kind}, {a.size:,} bytes" for a in slowest), sep="\n")
    print(*faults[:20], sep="\n")
    is_reached = peak <= MAX_PEAK_MEGABYTES and slowest[0].seconds <= MAX_SECONDS
    return 0 if is_alive and not faults and is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
