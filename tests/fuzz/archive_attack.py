"""Send hostile archives to a running service, and judge how their imports end and what they leave behind."""

import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from app.storage.blob_store import Blobs
from tests.fuzz.hostile_archives import HostileArchives

MAX_WAITING_JOBS = 20
POLL_SECONDS = 0.1
MAX_JOB_SECONDS = 180.0
MAX_CLEANUP_SECONDS = 15.0
"""How long the service may take to delete the uploads of cancelled imports and of requests that were cut off."""
DELIVERIES = ("raw",) * 14 + ("chunked", "form", "form of line ends", "cut off", "cancelled", "cancelled")
"""How an archive is sent; each as often as it is listed."""
BLOCK_BYTES = 50_000
REFUSALS = ("InvalidArchive", "ArchiveTooLarge")
SERVICE_FAULTS = ("PHOTO_FAILED", "WORKER_LOST", "PART_FAILED")
"""Reasons of items that no archive may cause."""
MAX_DETAIL_CHARACTERS = 1_000


class WaitingJob(NamedTuple):
    """An import that has not been seen to end. case: says what was sent; path: of the job"""

    case: str
    path: str
    is_cancelled: bool


class ArchiveAttack:
    """Imports of hostile archives by one client into one collection.

    outcomes: how often an import ended how; faults: what must never happen
    """

    def __init__(self, client: httpx.Client, seed: int) -> None:
        self.client, self.archives, self.rng = client, HostileArchives(seed), np.random.default_rng([seed, 1])
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.path = f"/v1/collections/hostile-{seed}"
        self._waiting: list[WaitingJob] = []
        client.put(self.path, json={}).raise_for_status()

    def run(self, cases: int) -> None:
        """Send archives, and wait for their jobs, MAX_WAITING_JOBS at a time."""
        for number in range(cases):
            kind, data = self.archives.draw()
            delivery = str(self.rng.choice(DELIVERIES))
            case = f"case {number}, {kind}, {delivery}"
            if delivery == "cut off":
                cut_off(self.client, f"{self.path}:import?aligned=true", data)
                self.outcomes["cut off"] += 1
                continue
            self._take_answer(case, delivery, self._send(delivery, data))
            if len(self._waiting) >= MAX_WAITING_JOBS:
                self._wait()
        self._wait()

    def _send(self, delivery: str, data: bytes) -> httpx.Response:
        url, params = f"{self.path}:import", {"aligned": True}
        if delivery == "form":
            return self.client.post(url, params=params, files={"file": ("archive", data)})
        if delivery == "form of line ends":
            return self.client.post(url, params=params, files={"file": ("archive", data + b"\r\n--" * len(data))})
        content = iterate_blocks(data) if delivery == "chunked" else data
        return self.client.post(url, params=params, content=content)

    def _take_answer(self, case: str, delivery: str, answer: httpx.Response) -> None:
        if answer.status_code == 202:
            path = answer.headers["Location"]
            if delivery == "cancelled":
                self.client.post(f"{path}:cancel")
            self._waiting.append(WaitingJob(case, path, delivery == "cancelled"))
            return
        code = answer.json()["code"]
        self.outcomes[f"{answer.status_code} {code}"] += 1
        is_shed = answer.status_code == 503 and "Retry-After" in answer.headers
        if not is_shed and (answer.status_code >= 500 or code not in (*REFUSALS, "InvalidRequest")):
            self.faults.append(f"{case}: {answer.status_code} {answer.text[:300]}")

    def _wait(self) -> None:
        for waiting in self._waiting:
            deadline = time.monotonic() + MAX_JOB_SECONDS
            while not (job := self.client.get(waiting.path).json())["finished_at"] and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            problem = job["problem"] or {}
            self.outcomes[f"job {job['state']} {problem.get('code', '')}".strip()] += 1
            items = list(self._list_items(waiting.path))
            self.faults += [f"{waiting.case}: {fault}" for fault in find_faults(job, items, waiting.is_cancelled)]
        self._waiting.clear()

    def _list_items(self, path: str) -> Iterator[dict[str, Any]]:
        token = None
        while True:
            params = {"limit": 1000} | ({"next_token": token} if token else {})
            page = self.client.get(f"{path}/items", params=params).json()
            yield from page["items"]
            token = page["next_token"]
            if not token:
                return


def find_faults(job: dict[str, Any], items: list[dict[str, Any]], is_cancelled: bool) -> Iterator[str]:
    """Yield what is wrong with a job that must have ended as a refusal, or with a reason for each file it refuses."""
    state, problem = job["state"], job["problem"] or {}
    if state == "succeeded":
        if not items or job["result"]["photo_failures"]:
            yield f"succeeded with {len(items)} items, and {job['result']}"
        for item in items:
            if item["state"] != "done" and not (item["state"] == "failed" and item["reasons"]):
                yield f"an item without a reason: {item}"
            if set(item["reasons"]) & set(SERVICE_FAULTS):
                yield f"the service failed over an item: {item}"
    elif state == "failed":
        detail = problem.get("detail", "")
        if problem["code"] not in REFUSALS or not 0 < len(detail) < MAX_DETAIL_CHARACTERS:
            yield f"failed with {problem}"
        if items:
            yield f"refused as a whole, with {len(items)} items kept"
    elif not (state == "cancelled" and is_cancelled):
        yield f"is {state}"


def iterate_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the data in blocks, which makes a client send them without a Content-Length."""
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]


def cut_off(client: httpx.Client, url: str, data: bytes) -> None:
    """Begin an upload, and close the connection before its end."""
    credentials = {k: v for k, v in client.headers.items() if k in ("authorization", "x-api-key")}
    headers = {"host": client.base_url.host, "content-length": str(len(data) + 1), **credentials}
    head = f"POST {url} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=30) as connection:
        connection.sendall(head.encode() + b"\r\n" + data)


def list_leftovers(home: Path, image_ids: set[str]) -> list[str]:
    """List the files of a service that nothing needs once its imports have ended.

    home: has the folder of temporary files, `temporary`, where the service has one of its own; image_ids: of all
    enrolled photos
    """
    files = [*(home / "uploads").iterdir(), *home.rglob("*.part"), *(home / "temporary").rglob("*")]
    blobs = Blobs(home / "blobs")
    names = ((collection, name) for collection in blobs.collections() for name in blobs.names(collection))
    files += [
        home / "blobs" / f"c-{collection}" / name
        for collection, name in names
        if name.rpartition("/")[2].partition("-")[0] not in image_ids
    ]
    return sorted({str(path.relative_to(home)) for path in files})


def wait_for_cleanup(home: Path, image_ids: Iterable[str]) -> list[str]:
    """Wait until nothing is left, and return what is left all the same after MAX_CLEANUP_SECONDS."""
    deadline, known = time.monotonic() + MAX_CLEANUP_SECONDS, set(image_ids)
    while (leftovers := list_leftovers(home, known)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return leftovers
