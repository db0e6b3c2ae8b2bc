"""Measure the overhead of a search over HTTP: `python -m benchmarks.search [--faces N] [--dim D]`.

The API runs in its own process with random vectors; the client and the stages run in this process, under equal load.
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import httpx
import numpy as np
from PIL import Image as Pillow

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.resources import open_resources
from app.threads import set_threads
from ml import images, synthetic_faces
from tests.raw_http import find_free_port
from tests.rows import GalleryWriter, make_model, people

ROUNDS = 100
WHOLE = "search by photo over HTTP"


def median_ms(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times), float(np.quantile(times, 0.99))


def show(what: str, times: tuple[float, float]) -> float:
    print(f"{what:44s} {times[0]:8.2f} ms   p99 {times[1]:8.2f}")
    return times[0]


def wait_until_ready(client: httpx.Client, path: str = "/readyz") -> float:
    start = time.perf_counter()
    while True:
        try:
            if client.get(path).status_code == 200:
                return time.perf_counter() - start
        except httpx.TransportError:
            time.sleep(0.05)
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faces", type=int, default=13_000)
    parser.add_argument("--dim", type=int, default=64)
    args = parser.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        upgrade_database(settings.database, settings.home)
        port = find_free_port()
        with open_resources(settings) as resources:
            model, other = (make_model(f"m-{i}", dim=args.dim, seed=i) for i in (1, 2))
            rows, owners = people(args.faces // 3, 3, dim=args.dim, spread=0.5)
            gallery = GalleryWriter(resources).make(model, previous=other)
            for at in range(0, len(rows), 50_000):
                part = slice(at, at + 50_000)
                gallery.add({model.id: rows[part], other.id: rows[part] + 1}, owners[part])
            with writing(resources.database) as session:
                secret = keys.create_key(session, "admin", "bench")[1]
            command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:from_env", "--port", str(port)]
            environment = os.environ | {"LIKENESS_HOME": home, "OMP_NUM_THREADS": "1"}
            server = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
            try:
                client = httpx.Client(
                    base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {secret}"}, timeout=60
                )
                print(f"ready after {wait_until_ready(client):.1f} s with {len(rows):,} faces, d={args.dim}")
                measure(client, resources, model, rows, gallery, server.pid)
            finally:
                server.terminate()
                server.wait(20)


def measure(client, resources, model, rows, gallery, pid) -> None:  # type: ignore[no-untyped-def]
    with client.stream("GET", "/info") as answer:
        answer.read()
    deployment = client.get("/info").json()["deployments"][0]
    print(f"p = {deployment['cells']}; memory {read_memory(pid):.0f} MB")
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    query = rows[:1] + 0.01
    bare = show("faiss, exhaustive, k=10", median_ms(lambda: index.search(query, 10)))
    body = {"vector": query[0].tolist()}
    path = "/v1/collections/staff/search:by-embedding"
    start = time.perf_counter()
    while not client.post(path, json=body).json()["calibrated"]:
        time.sleep(0.1)
    print(f"measured anew by the follower within {time.perf_counter() - start:.1f} s")
    spent = read_cpu_seconds(pid)
    for _ in range(ROUNDS):
        client.get("/livez")
    between = read_cpu_seconds(pid)
    for _ in range(ROUNDS):
        client.post(path, json=body)
    took = [1000 * (b - a) / ROUNDS for a, b in ((spent, between), (between, read_cpu_seconds(pid)))]
    print(f"{'CPU time of the server: livez, by-embedding':44s} {took[0]:8.2f} ms {took[1]:8.2f} ms")
    show("GET /livez: what HTTP itself costs here", median_ms(lambda: client.get("/livez")))
    http = show("search:by-embedding, limit 10", median_ms(lambda: read_answer(client.post(path, json=body))))
    exact = {"limit": 10, "m": 100_000}
    show(
        "search:by-embedding, limit 10, m = p",
        median_ms(lambda: read_answer(client.post(path, json=body, params=exact))),
    )
    show(
        "search:by-embedding, limit 1000",
        median_ms(lambda: read_answer(client.post(path, json=body, params={"limit": 1000})), 50),
    )
    print(f"{'beyond the bare call':44s} {http - bare:8.2f} ms   (wanted: 3)")
    measure_photo_search(client, resources, model, index)
    measure_eight_clients(client, path, body)
    measure_swap(client, gallery, pid)


def measure_photo_search(client, resources, model, index) -> None:  # type: ignore[no-untyped-def]
    """Print the time of each stage by the libraries alone, of the whole search over HTTP, and what the service adds."""
    buffer = io.BytesIO()
    Pillow.fromarray(synthetic_faces.draw(synthetic_faces.person(1), 0)).save(buffer, "JPEG", quality=92)
    data = buffer.getvalue()
    stages = build_stages(data, resources.front_end, model, index)
    files = {"file": ("a.jpg", data)}
    times = time_in_turns(
        stages | {WHOLE: lambda: read_answer(client.post("/v1/collections/staff/search", files=files))}
    )
    for name, values in times.items():
        show(name, (statistics.median(values), float(np.quantile(values, 0.99))))
    added_ms, percent = measure_overhead(times)
    print(f"{'added by the service (HTTP, batching, names)':44s} {added_ms:8.2f} ms   {percent:.1f} %    (wanted: 15)")


def build_stages(data: bytes, front_end: Any, model: Any, index: Any) -> dict[str, Callable[[], object]]:
    """Return the stages of a photo search as calls of ml and FAISS, without HTTP and without code of `app`.

    data: an encoded photo with a face; index: a FAISS index of the embeddings. The input of each stage, which is the
    output of the stage before, is computed beforehand.
    """
    image = images.read(data)
    face = front_end.detector.detect(image)[0]
    crops = {kind: front_end.align(image, face).crops[kind][None] for kind in model.recipe.crops}
    described = model.describe(crops)
    embedding = model.embed(described)
    return {
        "  decode": lambda: images.read(data),
        "  detect": lambda: front_end.detector.detect(image),
        "  landmarks, align, quality": lambda: front_end.align(image, face),
        "  describe": lambda: model.describe(crops),
        "  embed": lambda: model.embed(described),
        "  FAISS, exhaustive, k = 10": lambda: index.search(embedding, 10),
    }


def time_in_turns(
    stages: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the milliseconds of each stage in each round. The stages take turns, so that load slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(rounds):
        for name, stage in stages.items():
            start = clock()
            stage()
            times[name].append(1000 * (clock() - start))
    return times


def measure_overhead(times: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Return the median of WHOLE less the sum of the stages' medians: in milliseconds, and in percent of the sum."""
    stages = sum(statistics.median(values) for name, values in times.items() if name != WHOLE)
    added = statistics.median(times[WHOLE]) - stages
    return added, 100 * added / stages


def measure_eight_clients(client, path, body) -> None:  # type: ignore[no-untyped-def]
    """Measure searches by eight clients at once."""
    times: list[float] = []

    def ask() -> None:
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as own:
            for _ in range(40):
                start = time.perf_counter()
                read_answer(own.post(path, json=body))
                times.append(1000 * (time.perf_counter() - start))

    start = time.perf_counter()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(times) / (time.perf_counter() - start)
    print(f"{'eight clients: search:by-embedding':44s} {statistics.median(times):8.2f} ms   {rate:8.0f}/s")


def measure_swap(client, gallery, pid) -> None:  # type: ignore[no-untyped-def]
    """Measure the time until a roll back is served, and the peak memory of a swap."""
    before = read_memory(pid)
    start = time.perf_counter()
    gallery.point(champion="m-2", previous="m-1")
    while client.get("/info").json()["deployments"][0]["model"] != "m-2":
        time.sleep(0.005)
    print(f"{'roll back: from the commit to being served':44s} {1000 * (time.perf_counter() - start):8.0f} ms")
    print(f"{'memory before, peak':44s} {before:8.0f} MB  {read_memory(pid, 'VmHWM'):8.0f} MB")


def read_memory(pid: int, which: str = "VmRSS") -> float:
    status = next(li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith(which))
    return int(status.split()[1]) / 1024


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, which other load does not change."""
    spent = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def read_answer(answer: httpx.Response) -> object:
    assert answer.status_code == 200, answer.text
    return answer.json()


if __name__ == "__main__":
    main()
