"""Measure what the settled labels cost a search: `python -m benchmarks.label_constraints [--faces N] [--labels N]`.

The engine runs in this process. The same searches are asked in turn with and without the constraints, so that nothing
but the constraints differs. Each label says that a face and its nearest neighbour of another name are not the same, and
half of the queries lie near a labelled face: a search meets constraints more often than in use.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import insert

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.db.tables import Collection, Label
from app.resources import Resources, open_resources
from app.search.context import open_context
from app.search.params import QuerySearchParams
from app.search.service import search_by_vector
from app.serving.deployments import ServedDeployment
from app.serving.engine import Engine, open_engine
from app.serving.labels.constraints import ServedConstraints
from app.threads import set_threads
from ml.types import Rows
from tests.rows import GalleryWriter, make_model, people

COLLECTION = "staff"
ROWS_PER_INSERT = 50_000
QUERIES = 400
GOAL_MS = 0.2


def fill_gallery(resources: Resources, faces: int, dim: int) -> tuple[GalleryWriter, Rows]:
    """Store people with three faces each. Returns the gallery and the (faces, dim) rows."""
    model = make_model("m", dim=dim)
    rows, owners = people(faces // 3, 3, dim=dim, spread=0.5)
    gallery = GalleryWriter(resources, COLLECTION).make(model)
    for start in range(0, len(rows), ROWS_PER_INSERT):
        part = slice(start, start + ROWS_PER_INSERT)
        gallery.add({model.id: rows[part]}, owners[part])
    return gallery, rows


def label_neighbours(
    resources: Resources, engine: Engine, gallery: GalleryWriter, rows: Rows, count: int
) -> np.ndarray:
    """Label random faces and their nearest neighbours of another name as different. Returns the positions."""
    chosen = np.random.default_rng(1).choice(len(rows), count, replace=False)
    with engine.use(COLLECTION) as served:
        neighbours = served.loaded_index.search(rows[chosen], 12).ids
    first = gallery.pks[0]
    labels = []
    for position, pks in zip(chosen.tolist(), neighbours.tolist(), strict=True):
        other = next(pk for pk in pks if (pk - first) // 3 != position // 3)
        a, b = sorted((gallery.pks[position], other))
        labels.append({"task": "identity", "face_a": a, "face_b": b, "same": False, "by": "benchmark"})
    with writing(resources.database) as session:
        session.execute(insert(Label), labels)
        collection = session.get_one(Collection, COLLECTION)
        collection.change += 1
        collection.label_change = collection.change
    resources.notifier.notify("changes")
    return chosen


def wait_for_index(engine: Engine, faces: int) -> None:
    while not (served := engine.registry.get((COLLECTION, "identity"))) or served.champion.state.vectors < faces:
        time.sleep(0.1)


def wait_for_constraints(engine: Engine) -> ServedDeployment:
    while not (served := engine.registry.get((COLLECTION, "identity"))) or not served.constraints:
        time.sleep(0.05)
    return served


def time_searches(engine: Engine, queries: Rows, variants: Sequence[ServedDeployment]) -> list[list[float]]:
    """Ask each query with each variant in turn, in alternating order. Returns each variant's times in milliseconds."""
    times: list[list[float]] = [[] for _ in variants]
    params = QuerySearchParams(limit=10)
    for number, query in enumerate(queries):
        order = range(len(variants)) if number % 2 else reversed(range(len(variants)))
        for variant in order:
            engine.registry.put(variants[variant])
            with open_context(engine) as context:
                started = time.perf_counter()
                search_by_vector(context, COLLECTION, query.tolist(), params)
                times[variant].append(1000 * (time.perf_counter() - started))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faces", type=int, default=999_999)
    parser.add_argument("--labels", type=int, default=1_000)
    parser.add_argument("--dim", type=int, default=64)
    arguments = parser.parse_args()
    set_threads(1)
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home))
        upgrade_database(settings.database, settings.home)
        with open_resources(settings) as resources:
            gallery, rows = fill_gallery(resources, arguments.faces, arguments.dim)
            with open_engine(resources) as engine:
                wait_for_index(engine, len(rows))
                labelled = label_neighbours(resources, engine, gallery, rows, arguments.labels)
                constrained = wait_for_constraints(engine)
                engine.follower.stop()
                draw = np.random.default_rng(2)
                near = rows[
                    np.where(
                        draw.random(QUERIES) < 0.5, draw.choice(labelled, QUERIES), draw.integers(0, len(rows), QUERIES)
                    )
                ]
                queries = (near + 0.3 * draw.standard_normal(near.shape)).astype(np.float32)
                free = replace(constrained, constraints=ServedConstraints(constrained.constraints.change))
                without, with_labels = time_searches(engine, queries, (free, constrained))
    added = [b - a for a, b in zip(without, with_labels, strict=True)]
    low, median, high = np.quantile(added, (0.25, 0.5, 0.75))
    print(f"{len(rows):,} faces, d={arguments.dim}, {arguments.labels:,} labels, {QUERIES} searches by vector each")
    print(
        f"median without labels {statistics.median(without):.2f} ms, with them {statistics.median(with_labels):.2f} ms"
    )
    print(
        f"added by the labels: median {median:.3f} ms, quartiles {low:.3f} and {high:.3f} ms, mean"
        f" {statistics.mean(added):.3f} ms (goal: at most {GOAL_MS} ms)"
    )


if __name__ == "__main__":
    main()
