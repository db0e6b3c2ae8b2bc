"""Searches by photo, by enrolled face and by vector: one generation for the whole of each."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Collection, Embedding
from app.engine.engine import Engine
from app.engine.served import Serving
from app.errors import Busy, Invalid, NotFound
from app.search import naming
from app.search.asked import Asked, PhotoAsked
from app.search.matching import Hits, Line, line, match
from app.search.schemas import Answer, BoundingBox, Matches
from ml import images
from ml.types import AlignedFace, CropKind, Crops, Image, Rows


@dataclass(frozen=True, eq=False)
class Desk:
    """What a search needs at hand."""

    engine: Engine
    session: Session

    @contextmanager
    def use(self, collection: str, asked: Asked) -> Iterator[Serving]:
        with self.engine.use(collection, asked.task, asked.model) as serving:
            yield serving

    def faces(self, data: bytes, *, aligned: bool, most: int) -> list[AlignedFace]:
        """The `most` largest faces of a photo. Raises ml.Unreadable, Invalid where there is none, Busy."""
        settings, front_end = self.engine.resources.settings, self.engine.resources.front_end
        with self.engine.slots.alone():
            image = images.read(data, images.Limits(settings.max_image_bytes, settings.max_image_pixels))
            if aligned:
                return [front_end.aligned(image)]
            seen = (front_end.align(image, found) for found in front_end.detector.detect(image))
            faces = [face for face, _ in zip((f for f in seen if f is not None), range(most), strict=False)]
        if not faces:
            raise Invalid("no face was found in the photo", code="NoFace")
        return faces


@contextmanager
def open_desk(engine: Engine) -> Iterator[Desk]:
    """Its session begins with the first statement, when the heavy work is done."""
    with reading(engine.resources.database) as session:
        yield Desk(engine, session)


def by_photo(desk: Desk, collection: str, data: bytes, asked: PhotoAsked) -> Answer:
    """Raises NotFound, Invalid, Conflict, Busy, ml.Unreadable."""
    most = 1 if asked.face_selection == "largest" else desk.engine.resources.settings.max_faces_per_image
    with desk.use(collection, asked) as serving:
        drawn = line(serving.facts, asked.fmr, asked.threshold)
        faces = desk.faces(data, aligned=asked.aligned, most=most)
        hits = match(desk.session, serving, serving.embed(crops(serving, faces)), asked, drawn)
        kind = serving.generation.recipe.crops[0]
        own = [encoded(face.crops[kind]) for face in faces] if "crop" in asked.include else None
        return _answer(desk, serving, asked, drawn, hits, [bounding_box(face) for face in faces], own)


def by_face(desk: Desk, collection: str, face_id: str, asked: Asked) -> Answer:
    """The face itself is not among its matches. Raises NotFound, Conflict, Busy."""
    with desk.use(collection, asked) as serving:
        drawn = line(serving.facts, asked.fmr, asked.threshold)
        face = naming.face(desk.session, collection, face_id)
        hits = match(desk.session, serving, stored(desk.session, serving, [face.pk]), asked, drawn, but=face.pk)
        return _answer(desk, serving, asked, drawn, hits, [None])


def by_vector(desk: Desk, collection: str, vector: list[float], asked: Asked) -> Answer:
    """Raises NotFound, Invalid, Conflict, Busy."""
    with desk.use(collection, asked) as serving:
        drawn = line(serving.facts, asked.fmr, asked.threshold)
        if len(vector) != serving.index.dim:
            raise Invalid(
                f"the vector must have {serving.index.dim} numbers, as the embeddings of model "
                f"{serving.generation.id} for {asked.task} have; this one has {len(vector)}",
                needed=serving.index.dim,
            )
        hits = match(desk.session, serving, np.array([vector], np.float32), asked, drawn)
        return _answer(desk, serving, asked, drawn, hits, [None])


def crops(serving: Serving, faces: Sequence[AlignedFace]) -> dict[CropKind, Crops]:
    """What the generation's recipe needs of these faces."""
    return {kind: np.stack([f.crops[kind] for f in faces]) for kind in serving.generation.recipe.crops}


def stored(session: Session, serving: Serving, pks: Sequence[int]) -> Rows:
    """(n, dim): where these enrolled faces lie. Raises Busy where one has no place yet."""
    at = serving.held.place
    here = (Embedding.generation_id == at.generation, Embedding.task == at.task, Embedding.face_pk.in_(pks))
    found = {row.face_pk: row for row in session.scalars(select(Embedding).where(*here))}
    if len(found) < len(set(pks)):
        raise Busy(f"not embedded yet for model {at.generation}; try again shortly")
    return np.frombuffer(b"".join(found[pk].vector for pk in pks), "<f4").reshape(len(pks), -1)


def bounding_box(face: AlignedFace) -> BoundingBox:
    box = face.box
    return BoundingBox(x=round(box.x, 2), y=round(box.y, 2), width=round(box.width, 2), height=round(box.height, 2))


def encoded(crop: Image) -> str:
    return base64.b64encode(images.png(crop)).decode()


def _answer(
    desk: Desk,
    serving: Serving,
    asked: Asked,
    drawn: Line,
    hits: Hits,
    boxes: Sequence[BoundingBox | None],
    own: Sequence[str] | None = None,
) -> Answer:
    _still_there(desk, serving, hits)
    faces = [
        Matches(bounding_box=box, unknown=not found if drawn.cut else None, matches=found)
        for box, found in zip(boxes, hits.matches, strict=True)
    ]
    if "crop" in asked.include:
        _add_crops(desk, serving, hits, faces, own)
    return Answer(
        faces=faces,
        model=serving.generation.id,
        index_generation=serving.index_generation,
        task=asked.task,
        m=hits.m,
        fraction=hits.fraction,
        calibrated=serving.facts.calibration is not None,
        threshold=drawn.told,
        unknown=not any(hits.matches) if drawn.cut else None,
    )


def _still_there(desk: Desk, serving: Serving, hits: Hits) -> None:
    """Where nothing was found at all, the collection may be gone and the follower not know it yet."""
    if not hits.known and desk.session.get(Collection, serving.served.collection) is None:
        raise NotFound(f"no collection {serving.served.collection!r}")


def _add_crops(desk: Desk, serving: Serving, hits: Hits, faces: list[Matches], own: Sequence[str] | None) -> None:
    blobs, kind = desk.engine.resources.blobs, serving.generation.recipe.crops[0]
    named = {known.face_id: known for known in hits.known.values()}
    for i, face in enumerate(faces):
        if own is not None:
            face["crop"] = own[i]
        for found in face["matches"]:
            found["crop"] = naming.crop(blobs, serving.served.collection, named[found["face_id"]], kind)
