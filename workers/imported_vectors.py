"""Read imported vectors, which are the descriptors of their faces. They are the embeddings of the external model."""

from collections.abc import Iterator, Sequence
from itertools import chain

from sqlalchemy import select

from app.db.lookups import get_collection
from app.db.session import reading, stream_raw_rows
from app.db.tables import BUILT_IN_TASK, Embedding
from app.errors import NotFound
from app.galleries.external_descriptors import check_external_suits
from app.storage.embedding_codec import decode_embeddings
from app.storage.recognisers.external_models import name_external_model
from app.storage.stored_faces import StoredFace
from ml.model import Recipe
from ml.types import Rows
from workers.context import JobContext

MAX_FACES_PER_QUERY = 8_192
BYTES_PER_QUERY = 32 * 2**20


class VectorsErased(NotFound):
    """The vectors of these faces were erased after the faces were read."""

    def __init__(self, faces: Sequence[StoredFace]) -> None:
        super().__init__(f"{len(faces):,} faces were erased meanwhile; start the job again")
        self.faces = tuple(faces)


def choose_batch_size(dim: int) -> int:
    """Return of how many faces to read the vectors at once."""
    return max(1, min(MAX_FACES_PER_QUERY, BYTES_PER_QUERY // (4 * dim)))


def check_faces_suit(context: JobContext, recipe: Recipe, faces: Sequence[StoredFace]) -> None:
    """Check that the faces have what the recipe reads. Raises Conflict.

    Faces of imported vectors have no crops: without this check they would be taken for damaged.
    """
    collections = {face.collection_id for face in faces}
    with reading(context.resources.database) as session:
        for collection in sorted(collections):
            row = get_collection(session, collection)
            check_external_suits(session, row, recipe.external, "the model")


def read_imported(context: JobContext, recipe: Recipe, faces: Sequence[StoredFace], size: int) -> Iterator[Rows]:
    """Yield the vectors of the faces in batches of `size`, which are read-only. Raises VectorsErased."""
    is_vector = (Embedding.model_id == name_external_model(recipe), Embedding.task == BUILT_IN_TASK)
    for start in range(0, len(faces), size):
        context.check()
        batch = faces[start : start + size]
        pks = [face.pk for face in batch]
        with reading(context.resources.database) as session:
            chosen = select(Embedding.face_pk, Embedding.vector).where(*is_vector, Embedding.face_pk.in_(pks))
            vectors: dict[int, bytes] = dict(chain.from_iterable(stream_raw_rows(session, chosen)))
        if erased := [face for face in batch if face.pk not in vectors]:
            raise VectorsErased(erased)
        yield decode_embeddings([vectors[pk] for pk in pks], recipe.dim)
