"""The context of a search: the engine, a database session, and the faces of a photo."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from sqlalchemy.orm import Session

from app.db.session import reading
from app.deps.shared_schemas import BoundingBox
from app.errors import Invalid
from app.search.criteria import Criteria
from app.search.params import SearchParams
from app.serving.deployments import ServedModel
from app.serving.engine import Engine
from app.storage.audit_log.notes import NOTE, AuditNote
from app.storage.blob_store import Blobs
from ml.types import AlignedFace, CropKind, Crops, Rows


@dataclass(frozen=True, eq=False)
class SearchContext:
    """The engine and the session of one request.

    change: the change of the collection that the answer must contain
    session: None on the event loop, where a search reads memory alone and raises DatabaseNeeded if that is not enough
    after_answer: what is done once the answer has been sent
    """

    engine: Engine
    session: Session | None
    change: int | None = None
    after_answer: list[Callable[[], None]] = field(default_factory=list)

    def copy(self) -> "SearchContext":
        """Return the context of another search, after which nothing is to be done yet."""
        return SearchContext(self.engine, self.session, self.change)

    def finish(self) -> None:
        """Do what waits for the answer."""
        for work in self.after_answer:
            work()

    @property
    def blobs(self) -> Blobs:
        return self.engine.resources.blobs

    @contextmanager
    def use_models(self, collection: str, params: SearchParams) -> Iterator[Criteria]:
        """Use one model for each task for the whole request, whatever is published meanwhile.

        Raises NotFound, Busy if a model is not loaded yet, Conflict if tasks cannot be weighed, DatabaseNeeded, and
        Invalid if crops are to be included and the vectors were imported.
        """
        if self.session is None:
            yield Criteria.of(
                {
                    self.engine.find_immediate(collection, t, params.model, self.change): s
                    for t, s in params.shares.items()
                }
            )
            return
        with ExitStack() as stack:
            served = {
                task: stack.enter_context(self.engine.use(collection, task, params.model, self.change))
                for task in params.shares
            }
            if params.include and any(one.model.recipe.external is not None for one in served.values()):
                raise Invalid("imported vectors have no crops to show or to explain; leave out include")
            yield Criteria.of({served[task]: share for task, share in params.shares.items()})

    def renew(self, served: ServedModel) -> ServedModel:
        """Return the same model with what is known of people after slow work, as on a photo or by a filter.

        Who was erased, merged or has refused meanwhile is not named as before. Raises NotFound if the collection was
        deleted meanwhile.
        """
        if self.session is not None:
            self.session.rollback()  # what it has read was read before
        return self.engine.renew(served)

    def renew_all(self, criteria: Criteria) -> Criteria:
        """Renew the models of all tasks. Raises NotFound."""
        return Criteria(tuple(replace(task, served=self.renew(task.served)) for task in criteria.tasks))

    def find_faces(self, photo: bytes, *, aligned: bool, limit: int) -> list[AlignedFace]:
        """Return the `limit` largest faces of a photo.

        Raises ml.Unreadable, Invalid if there is no face, PhotoFailed, Busy.
        """
        front_end = self.engine.resources.front_end
        with self.engine.admit_photo(photo) as opened:
            image = opened.decode()
            if aligned:
                return [front_end.aligned(image)]
            detected = (front_end.align(image, detection) for detection in front_end.detector.detect(image))
            faces = list(islice((face for face in detected if face is not None), limit))
        if not faces:
            raise Invalid("no face was found in the photo", code="NoFace")
        return faces


@contextmanager
def open_context(
    engine: Engine, change: int | None = None, collections: Sequence[str] = (), note: AuditNote | None = None
) -> Iterator[SearchContext]:
    """Open the context of a request. Its transaction begins with the first statement, after the heavy work.

    change: see `SearchContext`
    collections: whose rows its session sees; empty: all, for a search of a collection that the key covers
    note: gets the collection for the audit log if the path does not name it
    """
    with reading(engine.resources.database, collections) as session:
        if note is not None:
            session.info[NOTE] = note
        yield SearchContext(engine, session, change)


def stack_crops(served: ServedModel, faces: Sequence[AlignedFace]) -> dict[CropKind, Crops]:
    """Return the (n, ...) crops of each kind that the model's recipe needs."""
    return {kind: np.stack([f.crops[kind] for f in faces]) for kind in served.model.recipe.crops}


def embed_faces(served: ServedModel, faces: Sequence[AlignedFace], sources: Sequence[str | None]) -> Rows:
    """Return the (n, dim) embeddings of the faces of a photo, corrected for their sources. Raises Busy, PhotoFailed."""
    return served.correct(served.embed(stack_crops(served, faces)), sources)


def describe_box(face: AlignedFace) -> BoundingBox:
    """Return the box of a face in the photo, with two decimals."""
    box = face.box
    return BoundingBox(x=round(box.x, 2), y=round(box.y, 2), width=round(box.width, 2), height=round(box.height, 2))
