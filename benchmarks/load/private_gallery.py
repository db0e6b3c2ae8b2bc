"""Start a service of its own, with a gallery whose embeddings are drawn and written directly."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.cli.private_service import run_service
from app.config import Settings
from app.db.migrate import upgrade_database
from app.resources import open_resources
from benchmarks.load.connections import Address
from benchmarks.load.traffic import Gallery
from tests.rows import GalleryWriter, make_model, people

COLLECTION = "staff"
FACES_PER_PERSON = 4
ROWS_PER_WRITE = 20_000


def write_gallery(home: Path, faces: int, dim: int = 64, *, has_challenger: bool = False) -> Gallery:
    """Write a collection of drawn embeddings into a new home. A challenger has the same embeddings as the champion."""
    settings = Settings(home=home, default_recogniser="lbp")
    home.mkdir(parents=True, exist_ok=True)
    upgrade_database(settings.database)
    rows, subjects = people(faces // FACES_PER_PERSON, FACES_PER_PERSON, dim=dim)
    model, face_ids = make_model("m-1", dim=dim), list[str]()
    others = {"challenger": make_model("m-2", dim=dim, seed=1)} if has_challenger else {}
    with open_resources(settings) as resources:
        writer = GalleryWriter(resources, COLLECTION).make(model, **others)
        for start in range(0, len(rows), ROWS_PER_WRITE):
            part = slice(start, start + ROWS_PER_WRITE)
            face_ids += writer.add({m.id: rows[part] for m in (model, *others.values())}, subjects[part])
    return Gallery(COLLECTION, rows, subjects, face_ids)


@contextmanager
def run_private_service(home: Path, **settings: str) -> Iterator[tuple[httpx.Client, Address]]:
    """Run a service over this home, and yield a client and the address for others. settings: as `run_service`"""
    chosen = {"default_recogniser": "lbp", "wpca_after_faces": "0", "max_connections_per_address": "1024"} | settings
    with run_service(home, **chosen) as client:
        yield client, Address(client.base_url.host, client.base_url.port or 80, client.headers["x-api-key"])
