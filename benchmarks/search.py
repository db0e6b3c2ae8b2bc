"""What a search over HTTP costs beyond its stages: `python -m benchmarks.search [--faces N] [--dim D]`.

The API runs in a process of its own over drawn vectors; the client and the stages in this one, so all see one load.
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
from collections.abc import Callable
from pathlib import Path

import faiss
import httpx
import numpy as np
from PIL import Image as Pillow

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade
from app.db.session import writing
from app.resources import open_resources
from app.threads import set_threads
from ml import images, synthetic_faces
from tests.conftest import free_port
from tests.rows import Gallery, generation, people

ROUNDS = 100


def median_ms(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds."""
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


def wait(client: httpx.Client, path: str = "/readyz") -> float:
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
    wanted = parser.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        upgrade(settings.database)
        port = free_port()
        with open_resources(settings) as resources:
            model, other = (generation(f"m-{i}", dim=wanted.dim, seed=i) for i in (1, 2))
            rows, whose = people(wanted.faces // 3, 3, dim=wanted.dim, spread=0.5)
            gallery = Gallery(resources).make(model, previous=other)
            for at in range(0, len(rows), 50_000):
                part = slice(at, at + 50_000)
                gallery.add({model.id: rows[part], other.id: rows[part] + 1}, whose[part])
            with writing(resources.database) as session:
                secret = keys.create(session, "admin", "bench")[1]
            command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:from_env", "--port", str(port)]
            environment = os.environ | {"LIKENESS_HOME": home, "OMP_NUM_THREADS": "1"}
            server = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
            try:
                client = httpx.Client(
                    base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {secret}"}, timeout=60
                )
                print(f"ready after {wait(client):.1f} s with {len(rows):,} faces, d={wanted.dim}")
                measure(client, resources, model, rows, gallery, server.pid)
            finally:
                server.terminate()
                server.wait(20)


def measure(client, resources, model, rows, gallery, pid) -> None:  # type: ignore[no-untyped-def]
    with client.stream("GET", "/info") as answer:
        answer.read()
    told = client.get("/info").json()["deployments"][0]
    print(f"p = {told['cells']}; memory {memory(pid):.0f} MB")
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
    spent = cpu(pid)
    for _ in range(ROUNDS):
        client.get("/livez")
    between = cpu(pid)
    for _ in range(ROUNDS):
        client.post(path, json=body)
    took = [1000 * (b - a) / ROUNDS for a, b in ((spent, between), (between, cpu(pid)))]
    print(f"{'CPU time of the server: livez, by-embedding':44s} {took[0]:8.2f} ms {took[1]:8.2f} ms")
    show("GET /livez: what HTTP itself costs here", median_ms(lambda: client.get("/livez")))
    http = show("search:by-embedding, limit 10", median_ms(lambda: ok(client.post(path, json=body))))
    exact = {"limit": 10, "m": 100_000}
    show("search:by-embedding, limit 10, m = p", median_ms(lambda: ok(client.post(path, json=body, params=exact))))
    show(
        "search:by-embedding, limit 1000",
        median_ms(lambda: ok(client.post(path, json=body, params={"limit": 1000})), 50),
    )
    print(f"{'beyond the bare call':44s} {http - bare:8.2f} ms   (wanted: 3)")
    photo(client, resources, model, lambda: ok(client.post(path, json=body)))
    together(client, path, body)
    swap(client, gallery, pid)


def photo(client, resources, model, query) -> None:  # type: ignore[no-untyped-def]
    """Each stage and the whole in turn, round after round, so that a busy moment falls on both."""
    buffer = io.BytesIO()
    Pillow.fromarray(synthetic_faces.draw(synthetic_faces.person(1), 0)).save(buffer, "JPEG", quality=92)
    data, front_end = buffer.getvalue(), resources.front_end
    image = images.read(data)
    found = front_end.detector.detect(image)[0]
    crops = {kind: front_end.align(image, found).crops[kind][None] for kind in model.recipe.crops}
    described, files = model.describe(crops), {"file": ("a.jpg", data)}
    stages = {
        "  decode": lambda: images.read(data),
        "  detect": lambda: front_end.detector.detect(image),
        "  landmarks, align, quality": lambda: front_end.align(image, found),
        "  describe": lambda: model.describe(crops),
        "  embed": lambda: model.embed(described),
        "  search by vector over HTTP": query,
        "search by photo": lambda: ok(client.post("/v1/collections/staff/search", files=files)),
    }
    times: dict[str, list[float]] = {name: [] for name in stages}
    for _ in range(ROUNDS):
        for name, stage in stages.items():
            start = time.perf_counter()
            stage()
            times[name].append(1000 * (time.perf_counter() - start))
    medians = [show(name, (statistics.median(t), float(np.quantile(t, 0.99)))) for name, t in times.items()]
    print(f"{'over the sum of its stages':44s} {100 * (medians[-1] / sum(medians[:-1]) - 1):8.1f} %    (wanted: 15)")


def together(client, path, body) -> None:  # type: ignore[no-untyped-def]
    """Eight clients at once."""
    times: list[float] = []

    def ask() -> None:
        with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=60) as own:
            for _ in range(40):
                start = time.perf_counter()
                ok(own.post(path, json=body))
                times.append(1000 * (time.perf_counter() - start))

    start = time.perf_counter()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = len(times) / (time.perf_counter() - start)
    print(f"{'eight clients: search:by-embedding':44s} {statistics.median(times):8.2f} ms   {rate:8.0f}/s")


def swap(client, gallery, pid) -> None:  # type: ignore[no-untyped-def]
    """How soon a roll back is served, and what a swap takes at its peak."""
    before = memory(pid)
    start = time.perf_counter()
    gallery.point(champion="m-2", previous="m-1")
    while client.get("/info").json()["deployments"][0]["model"] != "m-2":
        time.sleep(0.005)
    print(f"{'roll back: from the commit to being served':44s} {1000 * (time.perf_counter() - start):8.0f} ms")
    print(f"{'memory before, peak':44s} {before:8.0f} MB  {memory(pid, 'VmHWM'):8.0f} MB")


def memory(pid: int, which: str = "VmRSS") -> float:
    line = next(li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith(which))
    return int(line.split()[1]) / 1024


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has had: not blurred by what else runs."""
    spent = Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def ok(answer: httpx.Response) -> object:
    assert answer.status_code == 200, answer.text
    return answer.json()


if __name__ == "__main__":
    main()
