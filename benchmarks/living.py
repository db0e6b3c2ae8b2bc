"""Measure a running service: searches during a training, and the time of publishing and rolling back.

    python -m benchmarks.living --home HOME --collection NAME --photo FILE [--method ldml] [--dim 32] [--rounds 300]

HOME: the folder of a service with the collection, such as `likeness evaluate lfw --home HOME` creates; a model is added
to it. The service runs in its own processes; memory is the API's resident set size, read fifty times a second.
"""

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from app.cli.private_service import run_service
from benchmarks.load.processes import find_api_process

READ_SECONDS = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--collection", required=True)
    parser.add_argument("--photo", type=Path, required=True)
    parser.add_argument("--method", default="ldml")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    with run_service(args.home) as client:
        print(json.dumps(measure(client, args), indent=1))


def measure(client: httpx.Client, args: argparse.Namespace) -> dict[str, Any]:
    path, photo = f"/v1/collections/{args.collection}", args.photo.read_bytes()
    task = f"{path}/deployments/identity"
    faces = client.get(path).raise_for_status().json()["face_count"]

    def search() -> float:
        began = time.perf_counter()
        client.post(f"{path}/search", files={"file": photo}).raise_for_status()
        return 1000 * (time.perf_counter() - began)

    for _ in range(args.rounds):
        search()
    quiet = [search() for _ in range(args.rounds)]
    body = {"collection": args.collection, "method": args.method, "descriptor": "lbp", "dim": args.dim}
    began = time.perf_counter()
    training = client.post("/v1/trainings", json=body).raise_for_status().headers["Location"]
    beside: list[float] = []
    while not (job := client.get(training).json())["finished_at"]:
        beside += [search() for _ in range(10)]
        time.sleep(0.2)
    trained = time.perf_counter() - began
    model = job["result"]["model"]
    with Memory() as memory:
        began = time.perf_counter()
        answer = client.post(f"{task}:publish", json={"model": model, "override": True, "reason": "a benchmark"})
        publish = wait_for_result(client, answer)
        published = time.perf_counter() - began
    back = []
    for _ in range(6):
        began = time.perf_counter()
        wait_for_result(client, client.post(f"{task}:rollback"))
        back.append(time.perf_counter() - began)
    index = 4 * faces * args.dim / 2**20
    return {
        "faces": faces,
        "search by photo, quiet, ms": summarise_times(quiet),
        "search by photo, a training beside it, ms": summarise_times(beside),
        "p99 beside over quiet": round(float(np.quantile(beside, 0.99) / np.quantile(quiet, 0.99)), 2),
        "training while searched, s": round(trained, 1),
        "publish, s": round(published, 1),
        "publish job": publish,
        "roll back, s, median and most": [round(statistics.median(back), 3), round(max(back), 3)],
        "index, MiB": round(index, 1),
        "API's memory before and at most while it swaps, MiB": memory.read_start_and_peak(),
    }


def summarise_times(times: list[float]) -> dict[str, float]:
    return {
        "n": len(times),
        "median": round(statistics.median(times), 1),
        "p99": round(float(np.quantile(times, 0.99)), 1),
    }


def wait_for_result(client: httpx.Client, answer: httpx.Response) -> Any:
    answer.raise_for_status()
    if answer.status_code != 202:
        return None
    while not (job := client.get(answer.headers["Location"]).json())["finished_at"]:
        time.sleep(0.02)
    if job["state"] != "succeeded":
        raise SystemExit(json.dumps(job["problem"]))
    return {key: job["result"][key] for key in ("served", "version")}


class Memory(threading.Thread):
    """Records the resident set size of the API process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.api = find_api_process()
        self.seen: list[int] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.seen.append(self.api.memory_info().rss)
            time.sleep(READ_SECONDS)

    def __enter__(self) -> "Memory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(5)

    def read_start_and_peak(self) -> list[float]:
        return [round(self.seen[0] / 2**20, 1), round(max(self.seen) / 2**20, 1)]


if __name__ == "__main__":
    main()
