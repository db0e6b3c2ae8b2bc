"""What a search has at hand: the engine, a session, and the faces of a photo."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.db.session import reading
from app.deps.shapes import BoundingBox
from app.errors import Invalid
from app.search.asked import Asked
from app.search.criteria import Criteria
from app.serving.deployments import Serving
from app.serving.engine import Engine
from ml import images
from ml.types import AlignedFace, CropKind, Crops


@dataclass(frozen=True, eq=False)
class Desk:
    """What a search needs at hand."""

    engine: Engine
    session: Session

    @contextmanager
    def use(self, collection: str, asked: Asked) -> Iterator[Criteria]:
        """One generation of each task, for the whole of a request. Raises NotFound, Busy, Conflict."""
        with ExitStack() as stack:
            used = {t: stack.enter_context(self.engine.use(collection, t, asked.model)) for t in asked.shares}
            yield Criteria.of({used[task]: share for task, share in asked.shares.items()})

    def faces(self, data: bytes, *, aligned: bool, most: int) -> list[AlignedFace]:
        """The `most` largest faces of a photo. Raises ml.Unreadable, Invalid where there is none, Busy."""
        settings, front_end = self.engine.resources.settings, self.engine.resources.front_end
        with self.engine.slots.alone():
            image = images.read(data, images.ImageLimits(settings.max_image_bytes, settings.max_image_pixels))
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


def crops(serving: Serving, faces: Sequence[AlignedFace]) -> dict[CropKind, Crops]:
    """What the generation's recipe needs of these faces."""
    return {kind: np.stack([f.crops[kind] for f in faces]) for kind in serving.generation.recipe.crops}


def bounding_box(face: AlignedFace) -> BoundingBox:
    box = face.box
    return BoundingBox(x=round(box.x, 2), y=round(box.y, 2), width=round(box.width, 2), height=round(box.height, 2))
