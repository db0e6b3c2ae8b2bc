"""Compare an import over HTTP with the bare pipeline, on the same cores and photos.

    python -m benchmarks.importing ARCHIVE.tar [ARCHIVE.tar ...] [--photos N] [--first-model] [--recogniser NAME]

Bare pipeline: decode, detect, find landmarks, align, describe and embed, in as many processes as the service has
workers; nothing is stored. Service: a new one on a free port, timed from the first byte sent until all imports have
succeeded, that is, until the index contains the faces. Both use the default recogniser of new collections, or the one
that `--recogniser` names (`lbp`, `dlib_resnet`).
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from app.config import Settings
from app.enrolment.archives.formats import open_parser
from app.storage.recognisers.default_recogniser import choose_default
from app.threads import set_threads
from ml import images
from ml.pipeline import default_front_end

CHUNK_PHOTOS = 32


def process_share(share: tuple[list[tuple[Path, Any]], int]) -> int:
    """Process one share of the photos, and return the number of faces found."""
    set_threads(1)
    entries, _ = share
    front_end, model = default_front_end(), choose_default(Settings.from_env(os.environ)).model
    [kind] = model.recipe.crops
    embedded = 0
    for start in range(0, len(entries), CHUNK_PHOTOS):
        crops = []
        for path, entry in entries[start : start + CHUNK_PHOTOS]:
            image = images.read(open_parser(path).read(entry, 2**25))
            seen = front_end.detector.detect(image)[:1]
            faces = [front_end.align(image, face) for face in seen]
            crops += [face.crops[kind] for face in faces if face is not None]
        if crops:
            embedded += len(model.embed(model.describe({kind: np.stack(crops)})))
    return embedded


def measure_bare_rate(paths: list[Path], processes: int) -> dict[str, float]:
    entries = [(path, e) for path in paths for e in open_parser(path).entries() if e.kind == "file"]
    shares = [(entries[n::processes], n) for n in range(processes)]
    with get_context("spawn").Pool(processes) as pool:
        pool.map(process_share, [([], n) for n in range(processes)])  # load the models before the measurement
        began, spent = time.perf_counter(), cpu_seconds(os.getpid())
        faces = sum(pool.map(process_share, shares, chunksize=1))
        seconds, spent = time.perf_counter() - began, cpu_seconds(os.getpid()) - spent
    photos = len(entries)
    return {"photos": photos, "faces": faces, "seconds": seconds, "rate": photos / seconds, "cpu": spent / photos}


def cpu_seconds(process: int) -> float:
    return sum(read_cpu_seconds(process).values())


def read_cpu_seconds(process: int) -> dict[int, float]:
    """Return the CPU seconds of a process and its living children, from /proc."""
    spent = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.parent.name) == process or int(fields[1]) == process:
            spent[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def measure_service_rate(paths: list[Path], processes: int, first_model: bool) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="likeness-bench-"))
    environment = os.environ | {"LIKENESS_HOME": str(home), "LIKENESS_WORKERS": str(processes)}
    environment |= {"OMP_NUM_THREADS": "1"} | ({} if first_model else {"LIKENESS_WPCA_AFTER_FACES": "0"})
    likeness = [sys.executable, "-c", "from app.cli.main import main; main()"]
    subprocess.run([*likeness, "migrate", "--new"], env=environment, check=True)
    secret = _create_key(likeness, environment)
    port = _free_port()
    server = subprocess.Popen([*likeness, "serve", "--port", str(port)], env=environment, stdout=subprocess.DEVNULL)
    try:
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=600) as client:
            return _import(client, paths, server.pid)
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(home, ignore_errors=True)


def _create_key(likeness: list[str], environment: dict[str, str]) -> str:
    process = subprocess.run(
        [*likeness, "keys", "create", "--new", "--role", "admin"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return process.stdout.strip()


def _import(client: httpx.Client, paths: list[Path], server: int) -> dict[str, Any]:
    while True:
        try:
            client.get("/readyz").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(0.2)
    spent = -1.0
    while (now := cpu_seconds(server)) - spent > 0.1:  # wait until the workers have loaded their models
        spent = now
        time.sleep(2)
    client.put("/v1/collections/lfw").raise_for_status()
    began, spent = time.perf_counter(), read_cpu_seconds(server)
    jobs = []
    for path in paths:
        with path.open("rb") as file:
            answer = client.post(
                "/v1/collections/lfw:import", content=file, headers={"Content-Type": "application/x-tar"}
            )
        answer.raise_for_status()
        jobs.append(answer.headers["Location"])
    sent = time.perf_counter() - began
    ended = []
    for job in jobs:
        while not (shown := client.get(job).json())["finished_at"]:
            time.sleep(0.5)
        ended.append(shown)
    seconds = time.perf_counter() - began
    seconds_of = {
        "api" if p == server else f"worker {p}": t - spent.get(p, 0) for p, t in read_cpu_seconds(server).items()
    }
    reasons = Counter(r for job in jobs for i in _list_refused(client, job) for r in i["reasons"])
    done, failed = (sum(job["progress"][k] for job in ended) for k in ("done", "failed"))
    states = sorted(job["state"] for job in ended)
    return {
        "photos": done + failed,
        "done": done,
        "failed": failed,
        "seconds": seconds,
        "sent": sent,
        "rate": (done + failed) / seconds,
        "cpu": sum(seconds_of.values()) / (done + failed),
        "cpu_of_each": seconds_of,
        "states": states,
        "reasons": dict(reasons),
        "collection": client.get("/v1/collections/lfw").json(),
    }


def _list_refused(client: httpx.Client, job: str) -> list[dict[str, Any]]:
    return list(client.get(f"{job}/items", params={"state": "failed", "limit": 1000}).json()["items"])


def _cut(paths: list[Path], photos: int, folder: Path) -> list[Path]:
    """Write the first photos to one tar file."""
    kept = folder / "some.tar"
    with tarfile.open(kept, "w") as some:
        for path in paths:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and photos > 0:
                        some.addfile(member, archive.extractfile(member))
                        photos -= 1
    return [kept]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--photos", type=int, default=0, help="use only this many photos")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--first-model", action="store_true", help="let the service fit its first model during the import"
    )
    parser.add_argument("--recogniser", default="auto", help="recogniser of the new collection")
    arguments = parser.parse_args()
    os.environ["LIKENESS_DEFAULT_RECOGNISER"] = arguments.recogniser
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.archives
        if arguments.photos:
            paths = _cut(paths, arguments.photos, Path(folder))
        before = measure_bare_rate(paths, arguments.processes)
        served = measure_service_rate(paths, arguments.processes, arguments.first_model)
    ratios = {"ratio": served["rate"] / before["rate"], "ratio_of_cpu": before["cpu"] / served["cpu"]}
    result = {"bare": before, "service": served, **ratios}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
