"""Measure the start of an API's follower with many small collections, and its steps once nothing changes.

    OMP_NUM_THREADS=1 python -m benchmarks.many_collections [--collections 2500] [--faces 3] [--labels 0] [--dim 64]
        [--steps 20] [--home HOME]

Each collection is written directly, with its own people under one model; the first one has the labels. The follower is
driven by hand until it serves all of them. Beside the seconds stand the processor seconds of the process, which other
load on the machine changes less, and the SQL statements for a collection, those that begin a transaction too. Then come
a step that finds all as it was, and what `/readyz` takes. The variable keeps FAISS to one thread, as the API does.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import event, insert

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.db.tables import BUILT_IN_TASK, Collection, Deployment, Embedding, Face, Label, Subject
from app.health.service import list_unready_reasons
from app.resources import Resources, open_resources
from app.serving.engine import Engine
from app.threads import set_switch_interval
from tests.rows import make_model, people

MODEL = "m-1"
POLL_SECONDS = 0.5


def write_collections(resources: Resources, collections: int, faces: int, dim: int, labels: int) -> None:
    """Write the collections, each with faces of as many people, and labels of the first collection's faces."""
    names = [f"c-{number:05}" for number in range(collections)]
    numbers, rows = range(faces * collections), people(faces * collections, 1, dim=dim)[0]
    known_as = {"model_id": MODEL, "task": BUILT_IN_TASK}
    tables = {
        Collection: [
            {"id": name, "change": 1, "label_change": int(not i and labels > 0)} for i, name in enumerate(names)
        ],
        Deployment: [{"collection_id": name, "task": BUILT_IN_TASK, "champion": MODEL} for name in names],
        Subject: [{"pk": n + 1, "collection_id": names[n // faces], "id": f"p{n % faces}"} for n in numbers],
        Face: [_describe_face(names[n // faces], n) for n in numbers],
        Embedding: [known_as | {"face_pk": n + 1, "vector": rows[n].tobytes()} for n in numbers],
        Label: [{"task": BUILT_IN_TASK, "face_a": 1, "face_b": 2, "same": True, "by": f"l{i}"} for i in range(labels)],
    }
    with writing(resources.database) as session:
        resources.models.keep(session, make_model(MODEL, dim=dim))
        session.flush()
        for table, values in tables.items():
            if values:
                session.execute(insert(table), values)


def _describe_face(collection: str, number: int) -> dict[str, object]:
    face = {"pk": number + 1, "face_id": f"{number:036}", "collection_id": collection, "subject_pk": number + 1}
    face |= {"role": "gallery", "image_id": f"{number:064}", "bounding_box": {"x": 0, "y": 0, "width": 9, "height": 9}}
    return face | {"landmarks": [], "quality": {}, "attributes": {}, "change": 1}


@contextmanager
def measuring(resources: Resources, what: str, collections: int = 1, times: int = 1) -> Iterator[dict[str, object]]:
    """Yield a row to which the block's seconds, processor seconds and statements are added. times: that it is done"""
    row, statements = dict[str, object](what=what), [0]

    def count(*_: object) -> None:
        statements[0] += 1

    event.listen(resources.database, "before_cursor_execute", count)
    started, used = time.monotonic(), time.process_time()
    try:
        yield row
    finally:
        seconds, processor_seconds = time.monotonic() - started, time.process_time() - used
        event.remove(resources.database, "before_cursor_execute", count)
    row["seconds"] = round(seconds / times, 4)
    row["processor_seconds"] = round(processor_seconds / times, 4)
    row["statements"] = round(statements[0] / times / collections, 2)


def serve_all(engine: Engine, collections: int) -> None:
    """Step as the follower's thread does, until so many collections are served."""
    engine.follower.step()
    while len(engine.list_deployments()) < collections:
        engine.resources.notifier.wait("changes", POLL_SECONDS)
        engine.follower.step()


def measure(resources: Resources, collections: int, steps: int) -> Iterator[dict[str, object]]:
    """Yield what the start takes, then a step, then the readiness."""
    engine = Engine(resources)
    with measuring(resources, "start, statements for a collection", collections) as row:
        serve_all(engine, collections)
    yield row
    engine.follower.step()
    with measuring(resources, "step", times=steps) as row:
        for _ in range(steps):
            engine.follower.step()
    yield row
    with measuring(resources, "readiness") as row:
        row["reasons"] = list_unready_reasons(engine)
    yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", type=int, default=2_500)
    parser.add_argument("--faces", type=int, default=3)
    parser.add_argument("--labels", type=int, default=0, help="of one pair, by as many people")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--home", type=Path, help="keeps the collections here, for further runs")
    args = parser.parse_args()
    set_switch_interval()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=args.home or Path(folder), default_recogniser="lbp")
        is_new = not (settings.home / "likeness.sqlite").exists()
        settings.home.mkdir(parents=True, exist_ok=True)
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            if is_new:
                write_collections(resources, args.collections, args.faces, args.dim, args.labels)
            for row in measure(resources, args.collections, args.steps):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
