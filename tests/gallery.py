"""Enrol synthetic people in a collection as an import does, but without running the detector."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Collection, Deployment, Embedding, Face, Job, Subject
from app.resources import Resources
from app.storage.blob_store import MAX_SINGLE_FILES, Blobs
from app.storage.model_cache import LBP_MODEL
from ml.aligners.similarity import Similarity
from ml.images import encode_png
from ml.synthetic_faces import draw, person, photograph
from ml.types import CropKind
from workers.context import JobContext
from workers.description import describe_faces

_VECTORS: dict[tuple[int, int, float], bytes] = {}
"""Embeddings under the built-in model by person, photo and strength: 40 kB each, made once in a process."""
NOWHERE = {"x": 0.0, "y": 0.0, "width": 0.0, "height": 0.0}


@lru_cache(500)
def draw_photo(who: int, shot: int, strength: float = 1.0) -> bytes:
    """Draw a synthetic photo, as a PNG file, once in a process.

    who: person; shot: number of the photo; strength: how much light and pose vary
    """
    return encode_png(draw(person(who), shot, strength=strength))


@lru_cache(1000)
def crops(who: int, shot: int, strength: float) -> Mapping[CropKind, bytes]:
    """The PNG crops of one synthetic photo, aligned by its true landmarks. who: person; shot: number of the photo."""
    image, points = photograph(person(who), shot, 160, strength=strength)
    return {kind: encode_png(crop) for kind, crop in Similarity().crops(image, points).items()}


def collection(session: Session, name: str) -> Collection:
    collection_row = session.get(Collection, name)
    if collection_row is None:
        collection_row = Collection(id=name, change=0)
        session.add_all([collection_row, Deployment(collection_id=name, task="identity", champion=LBP_MODEL)])
        session.flush()
    return collection_row


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
    in_segments: bool = True,
    file: str = "",
) -> list[Face]:
    """Store faces with their crops and their embeddings under the built-in model, and return their rows.

    people: numbers of persons; the subject of person 3 is `p3`, unless named is False
    shots: photos per person; strength: how much light and pose vary; metadata: of each person
    in_segments: whether the store may pack the crops into a segment; otherwise each is a file of the disk
    file: begins what is hashed in place of a photo: the same photos in other files have another one
    """
    photos = [(who, who * 1000 + shot) for who in people for shot in range(shots)]
    ids = {(who, shot): Blobs.digest(f"{file}{who}-{shot}".encode()) for who, shot in photos}
    files = [
        (Blobs.crop(image, 0, kind), data)
        for (who, shot), image in ids.items()
        for kind, data in crops(who, shot, strength).items()
    ]
    with writing(resources.database) as session:
        collection(session, name)
    step = max(1, len(files)) if in_segments else MAX_SINGLE_FILES
    for start in range(0, len(files), step):
        resources.blobs.put(name, files[start : start + step])
    with writing(resources.database) as session:
        collection_row = collection(session, name)
        collection_row.change += 1
        subjects = _put_subjects(session, name, [f"p{who}" for who, _ in photos] if named else [])
        pks = [subjects[f"p{who}"].pk if named else None for who, _ in photos]
        faces = [
            _face(name, pk, ids[photo], collection_row.change, role) for pk, photo in zip(pks, photos, strict=True)
        ]
        for face, (who, _) in zip(faces, photos, strict=True):
            face.attributes = dict((metadata or {}).get(who, {}))
        session.add_all(faces)
        session.flush()
        _embed(resources, session, faces, [(who, shot, strength) for who, shot in photos])
    return faces


def _face(name: str, subject_pk: int | None, image: str, change: int, role: str) -> Face:
    return Face(
        collection_id=name, subject_pk=subject_pk, role=role, image_id=image, number=0, bounding_box=NOWHERE,
        landmarks=[], quality={}, change=change,
    )  # fmt: skip


def _put_subjects(session: Session, name: str, subject_ids: Iterable[str]) -> dict[str, Subject]:
    """Read the subjects of these ids, and store those that are new."""
    wanted = dict.fromkeys(subject_ids)
    where = select(Subject).where(Subject.collection_id == name, Subject.id.in_(wanted))
    subjects = {subject.id: subject for subject in session.scalars(where)}
    new = [Subject(collection_id=name, id=subject_id) for subject_id in wanted if subject_id not in subjects]
    session.add_all(new)
    session.flush()
    return subjects | {subject.id: subject for subject in new}


def _embed(resources: Resources, session: Session, faces: list[Face], photos: list[tuple[int, int, float]]) -> None:
    new = {photo: face for photo, face in zip(photos, faces, strict=True) if photo not in _VECTORS}
    if new:
        first = resources.models.get(LBP_MODEL)
        rows = describe_faces(JobContext("none", "test", resources), first.recipe, list(new.values()))
        vectors = np.ascontiguousarray(first.embed(rows).astype("<f4"))
        _VECTORS.update({photo: vector.tobytes() for photo, vector in zip(new, vectors, strict=True)})
    session.add_all(
        Embedding(model_id=LBP_MODEL, task="identity", face_pk=face.pk, vector=_VECTORS[photo])
        for photo, face in zip(photos, faces, strict=True)
    )


def context(resources: Resources, job: Job) -> JobContext:
    """The context that a worker gives to a handler."""
    return JobContext(job.id, "test", resources)
