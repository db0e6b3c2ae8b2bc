"""Drawn people in a collection, put there as an import would, without the detector."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Collection, Deployment, Embedding, Face, Job, Subject
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL
from ml.aligners.similarity import Similarity
from ml.images import encode_png
from ml.synthetic_faces import person, photograph
from ml.types import CropKind
from workers.context import JobContext
from workers.description import describe_faces

NOWHERE = {"x": 0.0, "y": 0.0, "width": 0.0, "height": 0.0}


@lru_cache(1000)
def crops(who: int, shot: int, strength: float) -> Mapping[CropKind, bytes]:
    """Aligned by the true points."""
    image, points = photograph(person(who), shot, 160, strength=strength)
    return {kind: encode_png(crop) for kind, crop in Similarity().crops(image, points).items()}


def collection(session: Session, name: str) -> Collection:
    found = session.get(Collection, name)
    if found is None:
        found = Collection(id=name, change=0)
        session.add_all([found, Deployment(collection_id=name, task="identity", champion=LBP_MODEL)])
        session.flush()
    return found


def enrol(
    resources: Resources,
    name: str,
    people: Iterable[int],
    *,
    shots: int = 4,
    strength: float = 1.0,
    named: bool = True,
    role: str = "gallery",
    metadata: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[Face]:
    """`shots` faces of each person, with their embeddings for the first model; subjects are named p<number>."""
    drawn = [(who, who * 1000 + shot) for who in people for shot in range(shots)]
    ids = {(who, shot): Blobs.digest(f"{who}-{shot}".encode()) for who, shot in drawn}
    files = [
        (Blobs.crop(image, 0, kind), data)
        for (who, shot), image in ids.items()
        for kind, data in crops(who, shot, strength).items()
    ]
    with writing(resources.database) as session:
        collection(session, name)
    resources.blobs.put(name, files)
    with writing(resources.database) as session:
        here = collection(session, name)
        here.change += 1
        faces = [_face(session, name, who, ids[who, shot], here.change, named, role) for who, shot in drawn]
        for face, (who, _) in zip(faces, drawn, strict=True):
            face.attributes = dict((metadata or {}).get(who, {}))
        session.add_all(faces)
        session.flush()
        _embed(resources, session, faces)
    return faces


def _face(session: Session, name: str, who: int, image: str, change: int, named: bool, role: str) -> Face:
    return Face(
        collection_id=name, subject_pk=_subject(session, name, f"p{who}").pk if named else None, role=role,
        image_id=image, number=0, bounding_box=NOWHERE, landmarks=[], quality={}, change=change,
    )  # fmt: skip


def _subject(session: Session, name: str, subject_id: str) -> Subject:
    where = select(Subject).where(Subject.collection_id == name, Subject.id == subject_id)
    found = session.scalar(where)
    if found is None:
        found = Subject(collection_id=name, id=subject_id)
        session.add(found)
        session.flush()
    return found


def _embed(resources: Resources, session: Session, faces: list[Face]) -> None:
    first = resources.models.get(LBP_MODEL)
    rows = describe_faces(JobContext("none", "test", resources), first.recipe, faces)
    vectors = first.embed(rows).astype("<f4")
    session.add_all(
        Embedding(model_id=LBP_MODEL, task="identity", face_pk=face.pk, vector=np.ascontiguousarray(row).tobytes())
        for face, row in zip(faces, vectors, strict=True)
    )


def context(resources: Resources, job: Job) -> JobContext:
    """As a worker would make it."""
    return JobContext(job.id, "test", resources)
