"""Start a service of its own, with a gallery whose embeddings are drawn and written directly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import httpx
from sqlalchemy import select

from app.cli.private_service import run_service
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import large_cache, reading, writing
from app.db.tables import BUILT_IN_TASK, Collection, Deployment, Face
from app.enrolment.vectors.bulk_store import VectorRecord, identify_vectors, store_batch
from app.enrolment.vectors.row_table import VectorRow
from app.resources import Resources, open_resources
from benchmarks.load.connections import Address
from benchmarks.load.traffic import Gallery
from ml.model import Model
from ml.types import Rows
from tests.rows import GalleryWriter, make_model, people

COLLECTION = "staff"
FACES_PER_PERSON = 4
ROWS_PER_WRITE = 20_000


def write_gallery(home: Path, faces: int, dim: int = 64, *, has_challenger: bool = False) -> Gallery:
    """Write a collection of drawn embeddings into a new home. A challenger has the same embeddings as the champion."""
    settings = Settings(home=home, default_recogniser="lbp")
    home.mkdir(parents=True, exist_ok=True)
    upgrade_database(settings.database, settings.home)
    rows, subjects = people(faces // FACES_PER_PERSON, FACES_PER_PERSON, dim=dim)
    model = make_model("m-1", dim=dim)
    others = {"challenger": make_model("m-2", dim=dim, seed=1)} if has_challenger else {}
    with open_resources(settings) as resources:
        GalleryWriter(resources, COLLECTION).make(model, **others)
        for start in range(0, len(rows), ROWS_PER_WRITE):
            part = slice(start, start + ROWS_PER_WRITE)
            _write_rows(resources, [model, *others.values()], rows[part], subjects[part])
        with reading(resources.database) as session:
            face_ids = list(session.scalars(select(Face.face_id).order_by(Face.pk)))
    return Gallery(COLLECTION, rows, subjects, face_ids)


def _write_rows(resources: Resources, models: Sequence[Model], rows: Rows, subjects: Sequence[str]) -> None:
    """Enrol (n, dim) embeddings of each of these models, as an import of vectors does."""
    named = zip(identify_vectors(rows), map(_name_row, subjects), strict=True)
    records = [VectorRecord(i, *record) for i, record in enumerate(named)]
    with writing(resources.database) as session, large_cache(session):
        collection = session.get_one(Collection, COLLECTION)
        store_batch(session, collection, records, {(model.id, BUILT_IN_TASK): rows for model in models}, False)


def add_people(home: Path, number: int, dim: int = 64) -> None:
    """Enrol so many more people, of one face each, in a collection that was written so. The service may be running."""
    rows, subjects = people(number, 1, dim=dim, seed=1)
    with open_resources(Settings(home=home, default_recogniser="lbp")) as resources:
        _write_rows(resources, [make_model("m-1", dim=dim)], rows, [f"later-{subject}" for subject in subjects])


def is_measured(home: Path) -> bool:
    """Whether the thresholds of a collection that was written so have been measured."""
    with open_resources(Settings(home=home)) as resources, reading(resources.database) as session:
        return "m-1" in session.scalars(select(Deployment.measurements)).one()


@lru_cache(maxsize=1)
def _name_row(subject: str) -> VectorRow:
    return VectorRow(subject=subject)


@contextmanager
def run_private_service(home: Path, **settings: str) -> Iterator[tuple[httpx.Client, Address]]:
    """Run a service over this home, and yield a client and the address for others. settings: as `run_service`"""
    chosen = {"default_recogniser": "lbp", "wpca_after_faces": "0", "max_connections_per_address": "1024"} | settings
    with run_service(home, **chosen) as client:
        yield client, Address(client.base_url.host, client.base_url.port or 80, client.headers["x-api-key"])
