"""Compare an import of vectors over HTTP with what FAISS takes to train and fill an index of them in memory.

    python -m benchmarks.import_embeddings [--vectors 100000] [--dim 64] [--cells 1024] [--table] [--json FILE]

Reference: `IndexIVFFlat` with FAISS's own parameters, its `train` and `add`, on as many threads as the machine has; and
once more with the k-means that Likeness has its cells made with ("equal").
Service: a new one on a free port with default settings, timed from the first byte sent until the job has succeeded,
that is, until searches see every face; and then until the index that searches is one of cells. The disk is what the
home has grown by, over the bytes of the vectors. `--table` sends a table with a subject and an id for each vector.
Beside each time stand the seconds of processor time of all processes, which other work on the machine hardly changes.
"""

import argparse
import io
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import httpx
import numpy as np
import psutil

from app.cli.private_service import run_service
from ml.distances import EUCLIDEAN
from ml.indexes import MAX_FLAT_FACES
from ml.indexes.common.cells import fit_centroids
from ml.types import Rows

PHOTOS = 10
SPREAD = 0.5
COLLECTION = "/v1/collections/imported"
POLL_SECONDS = 0.05
MAX_WAIT_SECONDS = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--cells", type=int, default=1024)
    parser.add_argument("--table", action="store_true", help="send a table with a subject and an id for each vector")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = draw_rows(options.vectors, options.dim)
    equal = measure_faiss(rows, options.cells, is_equal=True)
    measured = {f"equal_{name}": value for name, value in equal.items()}
    measured |= measure_faiss(rows, options.cells) | measure_service(rows, options.table)
    measured["ratio"] = measured["import_seconds"] / measured["faiss_seconds"]
    measured["ratio_with_cells"] = measured["cells_seconds"] / measured["faiss_seconds"]
    for part in ("import", "cells"):
        used = measured[f"{part}_processor_seconds"]
        measured[f"{part}_processor_ratio"] = used / measured["faiss_processor_seconds"]
        measured[f"{part}_equal_ratio"] = used / measured["equal_faiss_processor_seconds"]
    for name, value in measured.items():
        print(f"{name:24} {value:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(vars(options) | {"json": None} | measured, indent=1))


def draw_rows(count: int, dim: int) -> Rows:
    """Draw (count, dim) vectors of people with ten photos each."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((-(-count // PHOTOS), dim), dtype=np.float32).repeat(PHOTOS, axis=0)[:count]
    rows += SPREAD * draw.standard_normal(rows.shape, dtype=np.float32)
    return rows


def measure_faiss(rows: Rows, cells: int, is_equal: bool = False) -> dict[str, float]:
    """Train an index on (N, d) rows and add them. is_equal: with the k-means of the service"""
    cells = min(cells, len(rows) // 40)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(rows.shape[1]), rows.shape[1], cells)
    started, used = time.perf_counter(), time.process_time()
    if is_equal:
        index.quantizer.add(fit_centroids(rows, cells, EUCLIDEAN, 0))
        index.is_trained = True
    else:
        index.train(rows)
    trained = time.perf_counter()
    index.add(rows)
    return {
        "faiss_train_seconds": trained - started,
        "faiss_seconds": time.perf_counter() - started,
        "faiss_processor_seconds": time.process_time() - used,
    }


def measure_service(rows: Rows, has_table: bool) -> dict[str, float]:
    """Import (N, d) rows into a new service."""
    folder = Path(tempfile.mkdtemp(prefix="likeness-import-"))
    try:
        with run_service(folder / "home", default_recogniser="lbp") as client:
            body = {"descriptor": {"external": {"dim": rows.shape[1], "metric": "l2"}}}
            client.put(COLLECTION, json=body).raise_for_status()
            import_rows(client, rows[-1:], None)  # the workers start after the API
            before = measure_disk(folder)
            measured = import_rows(client, rows, make_table(len(rows)) if has_table else None)
        disk = (measure_disk(folder, without="indexes") - before) / rows.nbytes
        return measured | {"disk_ratio": disk, "disk_ratio_with_index": (measure_disk(folder) - before) / rows.nbytes}
    finally:
        shutil.rmtree(folder)


def import_rows(client: httpx.Client, rows: Rows, table: bytes | None) -> dict[str, float]:
    file = io.BytesIO()
    np.save(file, rows)
    file.seek(0)
    files = {"vectors": file} | ({} if table is None else {"table": io.BytesIO(table)})  # bytes take httpx 3 s
    started, used = time.perf_counter(), measure_processor_time()
    answer = client.post(f"{COLLECTION}/faces:import-embeddings", files=files).raise_for_status()
    sent = time.perf_counter()
    job = wait_for_job(client, answer.headers["location"])
    assert job["state"] == "succeeded", job
    ended, used_by_import = time.perf_counter(), measure_processor_time() - used
    wait_for_cells(client, rows)
    return {
        "upload_seconds": sent - started,
        "import_seconds": ended - started,
        "import_processor_seconds": used_by_import,
        "cells_seconds": time.perf_counter() - started,
        "cells_processor_seconds": measure_processor_time() - used,
        "vectors_per_second": len(rows) / (ended - started),
    }


def measure_processor_time() -> float:
    """Return the seconds of processor time that the service's processes have used so far."""
    times = (process.cpu_times() for process in psutil.Process().children(recursive=True))
    return sum(one.user + one.system for one in times)


def wait_for_job(client: httpx.Client, path: str) -> dict[str, Any]:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < until:
        job: dict[str, Any] = client.get(path).json()
        if job["finished_at"]:
            return job
        time.sleep(POLL_SECONDS)
    raise AssertionError(job)


def wait_for_cells(client: httpx.Client, rows: Rows) -> None:
    """Wait until a search computes fewer distances than there are vectors; a small gallery never has cells."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < until:
        answer = client.post(f"{COLLECTION}/search:by-embedding", json={"vector": rows[0].tolist()}).json()
        nearest = answer["faces"][0]["matches"][0]
        assert nearest["distance"] < 1e-3, "the vector itself is the nearest"
        if answer["fraction"] < 1 or len(rows) <= MAX_FLAT_FACES:
            return
        time.sleep(POLL_SECONDS)
    raise AssertionError("the index has no cells")


def make_table(count: int) -> bytes:
    lines = (f"person-{i // PHOTOS},photo-{i}.jpg\n" for i in range(count))
    return ("subject,external_image_id\n" + "".join(lines)).encode()


def measure_disk(folder: Path, without: str = "") -> int:
    """Return the size of all files below a folder in bytes. without: the name of a folder to leave out"""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and p.parent.name != without)


if __name__ == "__main__":
    main()
