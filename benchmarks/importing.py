"""Compare an import over HTTP with the bare pipeline, on the same cores and photos.

    python -m benchmarks.importing ARCHIVE.tar [ARCHIVE.tar ...] [--photos N] [--first-model] [--recogniser NAME]
    python -m benchmarks.importing --drawn 40000      # aligned crops of drawn people

Bare pipeline: decode, detect, find landmarks, align, describe and embed, in as many processes as the service has
workers; nothing is stored ([`bare_pipeline`](bare_pipeline.py)). It is measured before and after the service, and the
mean of both counts. Service: a new one on a free port, timed from the first byte sent until all imports have succeeded,
that is, until the index contains the faces. Both use the default recogniser of new collections, or the one that
`--recogniser` names (`lbp`, `dlib_resnet`).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bare_pipeline import measure_bare_rate, read_cpu_seconds
from benchmarks.drawn_crops import write_drawn_crops
from tests.raw_http import find_free_port


def measure_service_rate(paths: list[Path], processes: int, first_model: bool, is_aligned: bool) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="likeness-bench-"))
    environment = os.environ | {"LIKENESS_HOME": str(home), "LIKENESS_WORKERS": str(processes)}
    environment |= {"OMP_NUM_THREADS": "1"} | ({} if first_model else {"LIKENESS_WPCA_AFTER_FACES": "0"})
    likeness = [sys.executable, "-c", "from app.cli.main import main; main()"]
    subprocess.run([*likeness, "migrate", "--new"], env=environment, check=True)
    secret = _create_key(likeness, environment)
    port = find_free_port()
    server = subprocess.Popen([*likeness, "serve", "--port", str(port)], env=environment, stdout=subprocess.DEVNULL)
    try:
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=600) as client:
            return _import(client, paths, server.pid, is_aligned) | _measure_home(home)
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


def _import(client: httpx.Client, paths: list[Path], server: int, is_aligned: bool) -> dict[str, Any]:
    while True:
        try:
            client.get("/readyz").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(0.2)
    spent = -1.0
    while (
        now := sum(read_cpu_seconds(server).values())
    ) - spent > 0.1:  # wait until the workers have loaded their models
        spent = now
        time.sleep(2)
    client.put("/v1/collections/lfw").raise_for_status()
    began, spent = time.perf_counter(), read_cpu_seconds(server)
    jobs = []
    for path in paths:
        with path.open("rb") as file:
            answer = client.post(
                "/v1/collections/lfw:import",
                params={"aligned": is_aligned},
                content=file,
                headers={"Content-Type": "application/x-tar"},
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


def _measure_home(home: Path) -> dict[str, int]:
    """Return the number and bytes of the files of photos and crops, and the bytes of the database."""
    blobs = [path.stat() for path in (home / "blobs").rglob("*") if path.is_file()]
    database = sum(path.stat().st_size for path in home.glob("likeness.sqlite*"))
    return {"blob_files": len(blobs), "blob_bytes": sum(b.st_size for b in blobs), "database_bytes": database}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=Path)
    parser.add_argument("--photos", type=int, default=0, help="use only this many photos")
    parser.add_argument("--aligned", action="store_true", help="each photo is one face that is already cut")
    parser.add_argument("--drawn", type=int, default=0, help="import so many aligned crops of drawn people instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--first-model", action="store_true", help="let the service fit its first model during the import"
    )
    parser.add_argument("--recogniser", default="auto", help="recogniser of the new collection")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    os.environ["LIKENESS_DEFAULT_RECOGNISER"] = arguments.recogniser
    with tempfile.TemporaryDirectory() as folder:
        paths, is_aligned = arguments.archives, arguments.aligned or arguments.drawn > 0
        if arguments.drawn:
            paths = [Path(folder) / "drawn.tar"]
            write_drawn_crops(paths[0], arguments.drawn)
        if arguments.photos:
            paths = _cut(paths, arguments.photos, Path(folder))
        if not paths:
            parser.error("name an archive, or use --drawn")
        before = measure_bare_rate(paths, arguments.processes, is_aligned)
        served = measure_service_rate(paths, arguments.processes, arguments.first_model, is_aligned)
        after = measure_bare_rate(paths, arguments.processes, is_aligned)
    bare = {key: (before[key] + after[key]) / 2 for key in before}
    ratios = {"ratio": served["rate"] / bare["rate"], "ratio_of_cpu": bare["cpu"] / served["cpu"]}
    result = {"bare": bare, "bare_runs": [before, after], "service": served, **ratios}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
