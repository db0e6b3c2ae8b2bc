"""A service with two collections, each with people, faces, models, runs, jobs and keys of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from app.access import keys
from app.db.session import writing
from app.db.tables import Erasure, Evaluation, FaceCluster, JobItem, KeptSnapshot, Label, Training, now
from app.learning.evaluation_request import EvaluationRequest
from app.queue.jobs import enqueue
from app.queue.messages import Evaluate, ImportArchive
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from tests.rows import GalleryWriter, make_model
from tests.service import serve_api

MINE, OTHER = "front-desk", "back-office"
ROLES = ("reader", "operator", "admin")
LONG_SECONDS = 3600.0


@dataclass
class CollectionRows:
    """The ids of what belongs to one collection. Each name contains that of the collection, so that a leak is seen."""

    collection: str
    faces: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"{self.collection}-person"

    @property
    def file(self) -> str:
        return f"{self.collection}-photo.jpg"


@dataclass
class World:
    """client: of the API, without a key; headers: (role, bound to) -> the header with a key; rows: by collection"""

    client: httpx.Client
    resources: Resources
    headers: dict[tuple[str, tuple[str, ...]], dict[str, str]] = field(default_factory=dict)
    rows: dict[str, CollectionRows] = field(default_factory=dict)

    def send(self, method: str, path: str, role: str, *bound: str, **request: Any) -> httpx.Response:
        return self.client.request(method, path, headers=self.headers[role, bound], **request)

    def add_collection(self, name: str) -> None:
        """Fill a collection, and make a key of each role that is bound to it, and a spare one."""
        self.rows[name] = fill_collection(self.resources, name)
        self.make_keys(name)
        with writing(self.resources.database) as session:
            self.rows[name].ids["key"] = keys.create_key(session, "reader", f"{name} spare", (name,))[0].id

    def make_keys(self, *bound: str) -> None:
        with writing(self.resources.database) as session:
            for role in ROLES:
                secret = keys.create_key(session, role, f"{'+'.join(bound)} {role}", bound)[1]  # type: ignore[arg-type]
                self.headers[role, bound] = {"x-api-key": secret}


@contextmanager
def open_world(resources: Resources) -> Iterator[World]:
    """Fill the tables, and run the API as a thread of this process. No worker runs: the jobs stay as they are."""
    with serve_api(resources.settings) as url, httpx.Client(base_url=url, timeout=60, verify=False) as client:
        world = World(client, resources)
        world.make_keys()
        for name in (MINE, OTHER):
            world.add_collection(name)
        yield world


def fill_collection(resources: Resources, name: str) -> CollectionRows:
    """Write a collection with two faces of a person, a label, a cluster, a training with its model, and jobs."""
    rows = CollectionRows(name)
    gallery = GalleryWriter(resources, name).make(resources.models.get(LBP_MODEL))
    rows.faces = gallery.add({LBP_MODEL: np.eye(2, 9860, dtype=np.float32)}, [rows.subject, rows.subject])
    model = make_model(f"{name}-model")
    model.provenance["changes"] = {name: 1}
    with writing(resources.database) as session:
        message = ImportArchive(collection=name, path=f"/{rows.file}")
        ended, live = enqueue(session, message), enqueue(session, message, delay=LONG_SECONDS)
        ended.state, ended.finished_at = "succeeded", now()
        session.add(JobItem(job_id=ended.id, number=0, name=rows.file, state="done", detail={"faces": rows.faces}))
        first, second = gallery.pks
        session.add(Label(task="identity", face_a=first, face_b=second, same=True, by=f"{name}-labeller"))
        cluster = FaceCluster(collection_id=name, probability=0.9)
        source = {"task": "identity", "collection": None, "from": "subjects"}
        training = Training(request={"collection": name, "sources": [source]})
        evaluation = Evaluation(request=EvaluationRequest(collection=name).model_dump(mode="json", by_alias=True))
        erasure = Erasure(
            collection_id=name, collection_created_at=now(), target="face", state="final", change=1, first_change=1,
            contents={"removed": {}}, signature="0" * 64,
        )  # fmt: skip
        snapshot = KeptSnapshot(collection_id=name, job_id=live.id)
        session.add_all([cluster, training, evaluation, erasure, snapshot])
        session.flush()
        measured = enqueue(session, Evaluate(evaluation=evaluation.id), delay=LONG_SECONDS, reads=(name,))
        evaluation.job_id = measured.id
        resources.models.keep(session, model, training_id=training.id)
        training.model = model.id
        ids = {"job": ended.id, "live": live.id, "evaluation_job": measured.id, "training": training.id}
        rows.ids = ids | {
            "evaluation": evaluation.id,
            "model": model.id,
            "cluster": str(cluster.pk),
            "erasure": erasure.id,
            "snapshot": snapshot.id,
        }
    return rows
