"""Searches by photo, by enrolled face and by vector: one generation for the whole of each."""

import base64
from collections.abc import Iterator, Mapping, Sequence
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
from app.search.asked import EXPLAINED_IN_ALL, Asked, PhotoAsked
from app.search.criteria import Criterion
from app.search.explaining import crops_of, explain
from app.search.matching import Hits, Line, line, match
from app.search.schemas import Answer, BoundingBox, Matches
from ml import images
from ml.types import AlignedFace, CropKind, Crops, Image, Rows


@dataclass(frozen=True)
class Query:
    """A face that is searched with: where it is in the photo, and its (1, ...) crops; None where it has none."""

    box: BoundingBox | None = None
    crops: Mapping[CropKind, Crops] | None = None


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
        queries = [Query(bounding_box(f), {kind: crop[None] for kind, crop in f.crops.items()}) for f in faces]
        return _answer(desk, serving, asked, drawn, hits, queries)


def by_face(desk: Desk, collection: str, face_id: str, asked: Asked) -> Answer:
    """The face itself is not among its matches. Raises NotFound, Conflict, Busy."""
    with desk.use(collection, asked) as serving:
        drawn = line(serving.facts, asked.fmr, asked.threshold)
        face = naming.face(desk.session, collection, face_id)
        hits = match(desk.session, serving, stored(desk.session, serving, [face.pk]), asked, drawn, but=face.pk)
        kinds = serving.generation.recipe.crops if asked.include else ()
        own = crops_of(desk.engine.resources.blobs, collection, naming.names(desk.session, [face.pk])[face.pk], kinds)
        return _answer(desk, serving, asked, drawn, hits, [Query(None, own or None)])


def by_vector(desk: Desk, collection: str, vector: list[float], asked: Asked) -> Answer:
    """Raises NotFound, Invalid, Conflict, Busy."""
    if "explanation" in asked.include:
        raise Invalid("a vector has no crop whose cells could be told; search with a photo or an enrolled face")
    with desk.use(collection, asked) as serving:
        drawn = line(serving.facts, asked.fmr, asked.threshold)
        if len(vector) != serving.index.dim:
            raise Invalid(
                f"the vector must have {serving.index.dim} numbers, as the embeddings of model "
                f"{serving.generation.id} for {asked.task} have; this one has {len(vector)}",
                needed=serving.index.dim,
            )
        hits = match(desk.session, serving, np.array([vector], np.float32), asked, drawn)
        return _answer(desk, serving, asked, drawn, hits, [Query()])


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


def _answer(desk: Desk, serving: Serving, asked: Asked, drawn: Line, hits: Hits, queries: Sequence[Query]) -> Answer:
    _still_there(desk, serving, hits)
    faces = [
        Matches(bounding_box=query.box, unknown=not found if drawn.cut else None, matches=found)
        for query, found in zip(queries, hits.matches, strict=True)
    ]
    if "crop" in asked.include:
        _add_crops(desk, serving, hits, faces, queries)
    if "explanation" in asked.include:
        _add_explanations(desk, serving, hits, faces, queries)
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


def _add_crops(desk: Desk, serving: Serving, hits: Hits, faces: list[Matches], queries: Sequence[Query]) -> None:
    blobs, kind, named = desk.engine.resources.blobs, serving.generation.recipe.crops[0], hits.named
    for face, query in zip(faces, queries, strict=True):
        if query.crops is not None:
            face["crop"] = encoded(query.crops[kind][0])
        for found in face["matches"]:
            found["crop"] = naming.crop(blobs, serving.served.collection, named[found["face_id"]], kind)


def _add_explanations(desk: Desk, serving: Serving, hits: Hits, faces: list[Matches], queries: Sequence[Query]) -> None:
    left, named = EXPLAINED_IN_ALL, hits.named
    for face, query in zip(faces, queries, strict=True):
        here = [named[found["face_id"]] for found in face["matches"]]
        told = explain([Criterion(serving)], desk.engine.resources.blobs, query.crops, here[:left])
        told += [f"only the first {EXPLAINED_IN_ALL} matches of an answer are explained"] * len(here[left:])
        left = max(0, left - len(here))
        for found, one in zip(face["matches"], told, strict=True):
            found["explanation"] = None if isinstance(one, str) else one
            if isinstance(one, str):
                found["unexplained"] = one
