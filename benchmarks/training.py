"""A training as the worker runs it, on real crops: from the job's start to a kept candidate.

    python -m benchmarks.training --crops GREY.npy --names NAMES.txt [--method ldml] [--dim 32] [--option steps=800 ...]

GREY.npy: (N, 170, 100) uint8; NAMES.txt: one `Name/Name_0001.jpg` a line. The faces are put into a new service, in
a folder that is removed afterwards; that time is not counted.
"""

import argparse
import json
import logging
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.db.tables import Collection, Deployment, Face, Subject, Training
from app.learning.plan import ComponentChoice, Plan, Source
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.resources import Resources, open_resources
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL, ensure_lbp_model
from app.threads import set_threads
from ml.images import encode_png
from workers.context import JobContext
from workers.handlers import train

ROWS_PER_TRANSACTION = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crops", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--method", default="ldml")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--option", action="append", default=[], help="name=JSON")
    parser.add_argument("--holdout", type=float, default=0.2)
    parser.add_argument("--limit", type=int, help="only the first so many faces")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)8d %(name)s %(message)s")
    set_threads(args.threads)
    options = {"dim": args.dim} | {n: json.loads(v) for n, _, v in (o.partition("=") for o in args.option)}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            with writing(resources.database) as session:
                ensure_lbp_model(session, resources.models)
            names = args.names.read_text().splitlines()[: args.limit]
            enrol_faces(resources, np.load(args.crops, mmap_mode="r")[: args.limit], names)
            print(json.dumps(run_training(resources, args.method, options, args.holdout), indent=1))


def enrol_faces(resources: Resources, crops: Any, names: Sequence[str]) -> None:
    """Enrol all these faces in one collection, `c`."""
    with writing(resources.database) as session:
        deployment = Deployment(collection_id="c", task="identity", champion=LBP_MODEL)
        session.add_all([Collection(id="c", change=1), deployment])
        session.flush()
        session.add_all(Subject(collection_id="c", id=who) for who in dict.fromkeys(n.split("/")[0] for n in names))
        session.flush()
        people = dict(session.execute(select(Subject.id, Subject.pk)).all())
    for start in range(0, len(names), ROWS_PER_TRANSACTION):
        part = range(start, min(start + ROWS_PER_TRANSACTION, len(names)))
        images = [Blobs.digest(names[i].encode()) for i in part]
        resources.blobs.put(
            "c", [(Blobs.crop(m, 0, "grey"), encode_png(crops[i])) for i, m in zip(part, images, strict=True)]
        )
        with writing(resources.database) as session:
            session.add_all(
                Face(
                    collection_id="c", subject_pk=people[names[i].split("/")[0]], image_id=m, number=0, change=1,
                    bounding_box={}, landmarks=[], quality={},
                )
                for i, m in zip(part, images, strict=True)
            )  # fmt: skip


def run_training(resources: Resources, method: str, options: dict[str, Any], holdout: float) -> dict[str, Any]:
    plan = Plan(
        collection="c", method=method, descriptors=(ComponentChoice(name="lbp"),), options=options, holdout=holdout,
        sources=(Source(origin="subjects"), Source(origin="labels")),
    )  # fmt: skip
    with writing(resources.database) as session:
        training = Training(request=plan.model_dump(mode="json", by_alias=True))
        session.add(training)
        session.flush()
        message = Train(training=training.id, collection="c")
        job = enqueue(session, message)
        job.state, job.worker = "running", "benchmark"
    began, worked = time.perf_counter(), time.process_time()
    report = train.train_model(message, JobContext(job.id, "benchmark", resources))["report"]
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    figures = {
        which: {
            "mAP": report[which]["mean_average_precision"],
            "1-call@1": report[which]["ncall"]["1"],
            "1-call@10": report[which]["ncall"]["10"],
        }
        for which in ("candidate", "current")
        if report[which]
    }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    request = {
        "method": method,
        "options": options,
        "faces": report["faces"],
        "held_out_people": report["held_out_people"],
    }
    return (
        request
        | {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "peak_memory_gib": round(memory, 2)}
        | figures
    )


if __name__ == "__main__":
    main()
