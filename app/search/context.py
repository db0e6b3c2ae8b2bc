"""The context of a search: the engine, a database session, and the faces of a photo."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.db.session import reading
from app.deps.shared_schemas import BoundingBox
from app.errors import Invalid
from app.search.criteria import Criteria
from app.search.params import SearchParams
from app.serving.deployments import ServedModel
from app.serving.engine import Engine
from app.storage.blob_store import Blobs
from ml import images
from ml.types import AlignedFace, CropKind, Crops


@dataclass(frozen=True, eq=False)
class SearchContext:
    """The engine and the session of one request."""

    engine: Engine
    session: Session

    @property
    def blobs(self) -> Blobs:
        return self.engine.resources.blobs

    @contextmanager
    def use_models(self, collection: str, params: SearchParams) -> Iterator[Criteria]:
        """Use one model for each task for the whole request, whatever is published meanwhile.

        Raises NotFound, Busy if a model is not loaded yet, Conflict if tasks cannot be weighed.
        """
        with ExitStack() as stack:
            served = {
                task: stack.enter_context(self.engine.use(collection, task, params.model)) for task in params.shares
            }
            yield Criteria.of({served[task]: share for task, share in params.shares.items()})

    def find_faces(self, photo: bytes, *, aligned: bool, limit: int) -> list[AlignedFace]:
        """Return the `limit` largest faces of a photo. Raises ml.Unreadable, Invalid if there is no face, Busy."""
        settings, front_end = self.engine.resources.settings, self.engine.resources.front_end
        with self.engine.slots.reserve():
            image = images.read(photo, images.ImageLimits(settings.max_image_bytes, settings.max_image_pixels))
            if aligned:
                return [front_end.aligned(image)]
            detected = (front_end.align(image, detection) for detection in front_end.detector.detect(image))
            faces = [face for face, _ in zip((f for f in detected if f is not None), range(limit), strict=False)]
        if not faces:
            raise Invalid("no face was found in the photo", code="NoFace")
        return faces


@contextmanager
def open_context(engine: Engine) -> Iterator[SearchContext]:
    """Open the context of a request. Its transaction begins with the first statement, after the heavy work."""
    with reading(engine.resources.database) as session:
        yield SearchContext(engine, session)


def stack_crops(served: ServedModel, faces: Sequence[AlignedFace]) -> dict[CropKind, Crops]:
    """Return the (n, ...) crops of each kind that the model's recipe needs."""
    return {kind: np.stack([f.crops[kind] for f in faces]) for kind in served.model.recipe.crops}


def describe_box(face: AlignedFace) -> BoundingBox:
    """Return the box of a face in the photo, with two decimals."""
    box = face.box
    return BoundingBox(x=round(box.x, 2), y=round(box.y, 2), width=round(box.width, 2), height=round(box.height, 2))
