"""Embed stored descriptors with a new model, as a publication does, against reading them and one matrix product.

    python -m benchmarks.reembedding [--faces 100000] [--dim 9860] [--to 64] [--rounds 3] [--json FILE]

The descriptors are imported vectors in a SQLite database of its own: 39 KB a face, 3.9 GB for 100,000. Reference
and job run in turn in this process. The reference reads the rows by Python's own sqlite3, batch by batch, and
multiplies; it stores nothing. The job finds the faces without an embedding, reads, multiplies, and commits each batch
with its progress.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from sqlalchemy import delete

from app.collections import service
from app.collections.schemas import CollectionDescriptor, CollectionIn, ExternalDescriptor
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import large_cache, writing
from app.db.tables import BUILT_IN_TASK, Collection, Embedding
from app.enrolment.vectors.bulk_store import VectorRecord, identify_vectors, store_batch
from app.enrolment.vectors.row_table import NO_FIELDS
from app.resources import Resources, open_resources
from app.storage.recognisers.external_models import name_external_model
from ml.embedders.wpca import Wpca
from ml.model import Model, Recipe
from ml.types import Rows, Spec
from workers.context import JobContext
from workers.publishing.reembedding import reembed_collection

COLLECTION, NAME = "descriptors", "drawn"
ROWS_PER_WRITE = 1_000
ROWS_PER_READ = 1_000
MODEL = "m-new"
Times = tuple[float, float]
"""Seconds, and seconds of processor time."""


@contextmanager
def open_gallery(faces: int, dim: int) -> Iterator[Resources]:
    """Yield the resources of a new home with so many drawn descriptors."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), default_recogniser="lbp")
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            vectors = ExternalDescriptor(name=NAME, dim=dim, metric="l2")
            body = CollectionIn(description="", descriptor=CollectionDescriptor(external=vectors))
            with writing(resources.database) as session:
                service.put_collection(session, resources, COLLECTION, body)
            draw = np.random.default_rng(0)
            for start in range(0, faces, ROWS_PER_WRITE):
                rows = draw.standard_normal((min(ROWS_PER_WRITE, faces - start), dim), dtype=np.float32)
                _write_rows(resources, rows)
            yield resources


def _write_rows(resources: Resources, rows: Rows) -> None:
    records = [VectorRecord(i, image_id, NO_FIELDS) for i, image_id in enumerate(identify_vectors(rows))]
    with writing(resources.database) as session, large_cache(session):
        collection = session.get_one(Collection, COLLECTION)
        external = str(collection.external_model)
        store_batch(session, collection, records, {(external, BUILT_IN_TASK): rows}, False)


def make_model(dim: int, to: int) -> Model:
    """Return a model that multiplies the descriptors by a drawn matrix."""
    embedder = Wpca(dim=to)
    draw = np.random.default_rng(1)
    embedder.learned = {
        "projection": draw.standard_normal((to, dim), dtype=np.float32),
        "offset": np.zeros(to, np.float32),
    }
    recipe = Recipe((Spec("external", {"recogniser": NAME, "size": dim, "metric": "l2"}),))
    return Model(MODEL, recipe, "wpca", embedder, provenance={"made": "for a benchmark"})


def multiply(path: Path, external: str, projection: Rows) -> Rows:
    """The reference: read all descriptors and multiply them by a (d, D) matrix. Returns (n, d)."""
    chosen = "select vector from embeddings where model_id = ? and task = ? order by face_pk"
    parts = []
    with closing(sqlite3.connect(path)) as database:
        cursor = database.execute(chosen, (external, BUILT_IN_TASK))
        while rows := cursor.fetchmany(ROWS_PER_READ):
            vectors = np.frombuffer(b"".join(vector for (vector,) in rows), "<f4").reshape(len(rows), -1)
            parts.append(vectors @ projection.T)
    return np.concatenate(parts)


def measure(work: Callable[[], object]) -> Times:
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def compare(resources: Resources, model: Model, rounds: int) -> dict[str, float]:
    """Run reference and job in turn, and return medians and the median of their ratios."""
    with writing(resources.database) as session:
        resources.models.keep(session, model)
    path, external = resources.settings.home / "likeness.sqlite", name_external_model(model.recipe)
    projection = model.embedder.learned["projection"]
    context = JobContext("none", "benchmark", resources)
    multiply(path, external, projection)  # the file is in the system's cache from now on
    references, jobs = list[Times](), list[Times]()
    for _ in range(rounds):
        with writing(resources.database) as session:
            session.execute(delete(Embedding).where(Embedding.model_id == model.id))
        references.append(measure(lambda: multiply(path, external, projection)))
        jobs.append(measure(lambda: reembed_collection(context, COLLECTION, model, [BUILT_IN_TASK])))
    measured = {}
    for i, name in enumerate(("seconds", "processor")):
        measured[f"reference_{name}"] = statistics.median(times[i] for times in references)
        measured[f"job_{name}"] = statistics.median(times[i] for times in jobs)
        measured[f"ratio_{name}"] = statistics.median(j[i] / r[i] for j, r in zip(jobs, references, strict=True))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=9_860)
    parser.add_argument("--to", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with open_gallery(args.faces, args.dim) as resources:
        measured = compare(resources, make_model(args.dim, args.to), args.rounds)
    row = {"faces": args.faces, "dim": args.dim} | {name: round(value, 3) for name, value in measured.items()}
    print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
