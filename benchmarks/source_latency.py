"""Measure what simulating sources costs a service: `python -m benchmarks.source_latency --data DIR --cache DIR`.

Two `likeness serve` processes share a home and a database with faces of LFW and their crops. Some faces then get the
source of degraded photos, and both processes look for a simulation. Meanwhile labels are posted, as
`benchmarks.label_latency` does, until the new corrections are served. The same number of labels follows at rest. It
shows how long the measurement takes, and the seconds from each label to the changed answers of both processes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import select, update

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import writing
from app.db.tables import Collection, Face
from app.resources import open_resources
from app.storage.blob_store import Blobs
from benchmarks.label_latency import COLLECTION, GOAL_SECONDS, serve, time_label, wait_until_served
from ml import registry
from ml.compensation import degrade_crops
from ml.evaluation.protocols import number_people
from ml.images import encode_png
from ml.model import Model
from ml.types import Crops, Ids
from papers.harness.photos import Photos
from tests.rows import GalleryWriter

GOOD_FACES, POOR_FACES = 3_000, 200
DEGRADATION = "15 pixels"
DEPLOYMENT = f"/v1/collections/{COLLECTION}/deployments/identity"
PAUSE_SECONDS = 0.1
MAX_SECONDS = 300.0
MAX_SETTLING_SECONDS = 5.0
"""The slower process loads the index with the corrections."""


def write_gallery(gallery: GalleryWriter, model: Model, crops: Crops) -> list[str]:
    """Enrol the crops, the last POOR_FACES of them degraded, all without a source; return the face ids."""
    crops[GOOD_FACES:] = degrade_crops(crops[GOOD_FACES:], DEGRADATION)
    [kind] = model.recipe.crops
    ids = gallery.add({model.id: model.embed_crops({kind: crops})["identity"]}, [None] * len(crops))
    with writing(gallery.resources.database) as session:
        images = {row.pk: row.image_id for row in session.execute(select(Face.pk, Face.image_id))}
    names = [Blobs.crop(images[pk], 0, kind) for pk in gallery.pks]
    gallery.resources.blobs.put(COLLECTION, ((n, encode_png(c)) for n, c in zip(names, crops, strict=True)))
    return ids


def set_source(gallery: GalleryWriter) -> None:
    with writing(gallery.resources.database) as session:
        collection = session.get_one(Collection, COLLECTION)
        collection.change += 1
        poor = update(Face).where(Face.pk.in_(gallery.pks[GOOD_FACES:]))
        session.execute(poor.values(source="gate", change=collection.change))
    gallery.resources.notifier.notify("changes")


def is_served(client: httpx.Client) -> bool:
    """Whether the corrections of the source are served."""
    return any(source["compensated"] for source in client.get(DEPLOYMENT).raise_for_status().json()["sources"])


def find_pairs(people: Ids, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield two good faces of each person with two or more. They are near enough to find each other."""
    for person in np.unique(people[:GOOD_FACES]):
        own = np.flatnonzero(people[:GOOD_FACES] == person)
        if len(own) > 1:
            yield ids[own[0]], ids[own[1]]


def measure(settings: Settings, model: Model, crops: Crops, people: Ids) -> tuple[float, list[float], list[float]]:
    """Return the seconds until the corrections are served, and those of each label until then and at rest."""
    upgrade_database(settings.database, settings.home)
    with open_resources(settings) as resources, ExitStack() as stack:
        gallery = GalleryWriter(resources, COLLECTION).make(model)
        ids = write_gallery(gallery, model, crops)
        with writing(resources.database) as session:
            secret = keys.create_key(session, "operator", "benchmark")[1]
        urls = [stack.enter_context(serve(settings)) for _ in range(2)]
        headers = {"x-api-key": secret}
        clients = [stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60)) for url in urls]
        for client in clients:
            wait_until_served(client, ids[0])
        pairs = find_pairs(people, ids)
        time_label(clients, *next(pairs))
        set_source(gallery)
        started = time.monotonic()
        meanwhile: list[float] = []
        while not is_served(clients[0]) and time.monotonic() - started < MAX_SECONDS:
            meanwhile.append(time_label(clients, *next(pairs)))
            time.sleep(PAUSE_SECONDS)
        seconds = time.monotonic() - started
        time.sleep(MAX_SETTLING_SECONDS)
        return seconds, meanwhile, [time_label(clients, *next(pairs)) for _ in meanwhile]


def draw_faces(photos: Photos, recogniser: str) -> tuple[Model, Crops, Ids]:
    """Return the recogniser as a model, and crops of LFW with the number of each person, people together."""
    recipe = photos.recipe(recogniser)
    model = Model("m-source-latency", recipe, "cosine", registry.build("embedders", "cosine"))
    people = number_people(photos.names("lfw"))
    counts = np.bincount(people)[people]
    chosen = np.flatnonzero(counts > 1)[: GOOD_FACES + POOR_FACES]
    [kind] = recipe.crops
    return model, np.array(photos.crops("lfw", kind)[chosen]), people[chosen]


def describe(seconds: Sequence[float]) -> str:
    late = sum(value > GOAL_SECONDS for value in seconds)
    return (
        f"{len(seconds)} labels, median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s, "
        f"{late} later than {GOAL_SECONDS:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="LFW")
    parser.add_argument("--cache", type=Path, default=Path(".likeness/photos"), help="keeps crops")
    parser.add_argument("--recogniser", default="dlib_resnet")
    args = parser.parse_args()
    model, crops, people = draw_faces(Photos(args.data, args.cache), args.recogniser)
    with tempfile.TemporaryDirectory() as home:
        seconds, meanwhile, at_rest = measure(Settings(home=Path(home)), model, crops, people)
    print(f"corrections served after {seconds:.1f} s")
    print(f"meanwhile: {describe(meanwhile)}")
    print(f"at rest:   {describe(at_rest)}", flush=True)


if __name__ == "__main__":
    main()
