"""Compare what an import costs a worker in two checkouts of the service.

    python -m benchmarks.archive_cost --other FOLDER [--photos 1000] [--rounds 5] [--format tar]

Each round imports one archive of drawn faces, aligned and described by LBP, into a new service: first with the code in
FOLDER, then with the code here. Processor seconds are those of the worker and of its children.
"""

import argparse
import io
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
FORMATS = {"tar": "w", "tar.gz": "w:gz"}
FACE_SHAPE = (170, 100, 3)


def write_archive(path: Path, mode: str, photos: int) -> None:
    """Write an archive of textured pictures, ten for each person."""
    from ml.images import encode_png

    rng = np.random.default_rng(0)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for number in range(photos):
            data = encode_png(rng.integers(40, 215, FACE_SHAPE, np.uint8))
            member = tarfile.TarInfo(f"p{number // 10}/{number}.png")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def import_archive(source: Path) -> tuple[float, float]:
    """Import an archive with the code that Python finds. Returns its seconds and its processor seconds."""
    from app.collections.schemas import CollectionIn
    from app.collections.service import put_collection
    from app.config import Settings
    from app.db.migrate import upgrade_database
    from app.db.session import reading, writing
    from app.db.tables import Job
    from app.queue import jobs
    from app.queue.messages import ImportArchive
    from app.resources import open_resources
    from app.threads import set_threads
    from workers.worker import Worker

    set_threads(1)
    with tempfile.TemporaryDirectory(prefix="likeness-bench-") as home:
        settings = Settings(home=Path(home), wpca_after_faces=0)
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            upload = resources.uploads / "archive"
            upload.write_bytes(source.read_bytes())
            with writing(resources.database) as session:
                put_collection(session, resources, "staff", CollectionIn(recogniser="lbp"))
                message = ImportArchive(collection="staff", path=str(upload), aligned=True)
                job_id = jobs.enqueue(session, message).id
            worker, started, spent = Worker(resources, "default"), time.perf_counter(), read_processor_seconds()
            while True:
                worker.step()
                with reading(resources.database) as session:
                    job = session.get_one(Job, job_id)
                if job.finished_at:
                    break
                time.sleep(0.02)
            if job.state != "succeeded" or job.failed:
                raise SystemExit(f"the import ended as {job.state}: {job.problem}")
            return time.perf_counter() - started, read_processor_seconds() - spent


def read_processor_seconds() -> float:
    """Return the processor seconds of this process and of the children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_import(checkout: Path, archive: Path) -> list[float]:
    """Import an archive with the code of a checkout, in a process of its own."""
    command = [sys.executable, "-P", __file__, "--import", str(archive)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, cwd=checkout, check=True, capture_output=True, text=True)
    return [float(number) for number in process.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout, with the code to compare with")
    parser.add_argument("--photos", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=FORMATS, action="append", help="tar by default; may be repeated")
    parser.add_argument("--import", type=Path, dest="archive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.archive:
        print(*import_archive(arguments.archive))
        return
    checkouts = {"other": arguments.other.resolve(), "here": HERE}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.format or ["tar"]:
            archive = Path(folder) / name
            write_archive(archive, FORMATS[name], arguments.photos)
            runs: dict[str, list[list[float]]] = {which: [] for which in checkouts}
            for _ in range(arguments.rounds):
                for which, checkout in checkouts.items():
                    runs[which].append(run_import(checkout, archive))
            for number, what in enumerate(("seconds", "processor seconds")):
                before, now = (statistics.median(run[number] for run in runs[which]) for which in checkouts)
                print(f"{name}, {what}: other {before:.2f}, here {now:.2f}, {now / before - 1:+.1%}", flush=True)
            print(f"{name}: all {runs}", flush=True)


if __name__ == "__main__":
    main()
