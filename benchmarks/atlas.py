"""Draw the atlas of a gallery: seconds, memory, and how many neighbours survive.

    python -m benchmarks.atlas --faces 1000000
    python -m benchmarks.atlas --embeddings LFW.npy --method pca --method tsne

`--faces N` stores N random embeddings of 128 numbers in a new database and draws their atlas as a worker does, then
places 1,000 new faces and reads the routes. `--embeddings FILE` is an (N, d) array; it fits maps to it without a
database, and places faces that were held back.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.atlases import service
from app.atlases.window import WindowEdges
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Job, new_id
from app.queue.messages import DrawAtlas
from app.resources import Resources, open_resources
from app.storage.embedding_codec import encode_embeddings
from ml.atlas import PcaMap, TsneMap, measure_neighbours
from ml.types import Rows
from tests.rows import make_model
from workers.atlas.placement import MAX_TSNE_FACES
from workers.context import JobContext
from workers.handlers.draw_atlas import draw_deployment_atlas

DIM = 128
NEW_FACES = 1_000
FACES_PER_INSERT = 20_000
WINDOWS = {"all": WindowEdges(), "a sixteenth": WindowEdges(-0.25, 0.25, -0.25, 0.25)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, help="random faces in a database")
    parser.add_argument("--embeddings", type=Path, help="an (N, d) array of embeddings")
    parser.add_argument("--method", action="append", choices=["pca", "tsne"], help="default: pca")
    options = parser.parse_args()
    methods = options.method or ["pca"]
    if options.faces:
        draw_random_gallery(options.faces, methods[0])
    if options.embeddings:
        rows = np.load(options.embeddings).astype(np.float32)
        for method in methods:
            measure_map(rows, method)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def measure_map(rows: Rows, method: str) -> None:
    """Fit a map to 90 % of the rows, at most MAX_TSNE_FACES, and place the others on it."""
    order = np.random.default_rng(0).permutation(len(rows))
    fitted_rows, new = rows[order[len(rows) // 10 :]], rows[order[: len(rows) // 10]]
    with timed(f"{method}: fit {len(fitted_rows):,} faces"):
        fitted = PcaMap.fit(fitted_rows) if method == "pca" else TsneMap.fit(fitted_rows[:MAX_TSNE_FACES])
    with timed(f"{method}: place {len(new):,} new faces"):
        placed = fitted.locate(new)
    known = fitted.coordinates if isinstance(fitted, TsneMap) else fitted.locate(fitted_rows)
    print(f"{method}: fitted faces {measure_neighbours(fitted_rows[: len(known)], known)}")
    both = np.concatenate([fitted_rows[: len(known)], new])
    print(f"{method}: with new faces {measure_neighbours(both, np.concatenate([known, placed]))}")
    if isinstance(fitted, PcaMap):
        print(f"{method}: explained variance {fitted.explained_variance}")


def draw_random_gallery(faces: int, method: str) -> None:
    """Store random faces, draw their atlas, place new ones, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), default_recogniser="lbp")
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            with writing(resources.database) as session:
                make_collection(session, resources)
            with timed(f"store {faces:,} faces"):
                add_faces(resources, faces)
            print(run_job(resources, method, only_update=False))
            add_faces(resources, NEW_FACES)
            print(run_job(resources, method, only_update=True))
            with reading(resources.database) as session:
                read_routes(session)


def make_collection(session: Session, resources: Resources) -> None:
    resources.models.keep(session, make_model("m", DIM))
    session.add(Collection(id="c"))
    session.flush()
    session.add(Deployment(collection_id="c", task="identity", champion="m"))


def add_faces(resources: Resources, faces: int) -> None:
    draw = np.random.default_rng(faces)
    for start in range(0, faces, FACES_PER_INSERT):
        rows = draw.standard_normal((min(FACES_PER_INSERT, faces - start), DIM), dtype=np.float32) * 0.2
        with writing(resources.database) as session:
            collection = session.get_one(Collection, "c")
            collection.change += 1
            values = {
                "collection_id": "c", "bounding_box": {}, "landmarks": [], "quality": {}, "change": collection.change,
            }  # fmt: skip
            described = [values | {"face_id": str(uuid4()), "image_id": uuid4().hex * 2} for _ in rows]
            pks = session.scalars(insert(Face).returning(Face.pk), described).all()
            vectors = zip(pks, encode_embeddings(rows), strict=True)
            embeddings = [{"model_id": "m", "task": "identity", "face_pk": pk, "vector": v} for pk, v in vectors]
            session.execute(insert(Embedding), embeddings)


def run_job(resources: Resources, method: str, only_update: bool) -> dict[str, object]:
    message = DrawAtlas(collection="c", task="identity", method="pca" if method == "pca" else "tsne")
    message = message.model_copy(update={"only_update": only_update})
    with writing(resources.database) as session:
        job = Job(id=new_id(), kind=message.kind, body=message.model_dump(), queue="training")
        session.add(job)
    with timed("update" if only_update else "draw"):
        return draw_deployment_atlas(message, JobContext(job.id, "benchmark", resources))


def read_routes(session: Session) -> None:
    with timed("describe"):
        service.describe_atlas(session, "c", "identity")
    for name, edges in WINDOWS.items():
        with timed(f"density of {name}, 64 x 64"):
            density = service.count_faces(session, "c", "identity", edges, 64)
        with timed(f"1,000 points of {name} ({density.faces:,} faces)"):
            service.list_points(session, "c", "identity", edges, 1000)


@contextmanager
def timed(name: str) -> Iterator[None]:
    start = time.perf_counter(), time.process_time()
    yield
    seconds, core_seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    print(f"{name}: {seconds:.2f} s, {core_seconds:.2f} s of a core", flush=True)


if __name__ == "__main__":
    main()
