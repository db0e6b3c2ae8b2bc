"""Collections of imported vectors: what they hold, and what does not suit them."""

from sqlalchemy.orm import Session

from app.db.tables import Collection, ModelRecord
from app.errors import Conflict
from app.storage.recognisers.external_models import read_external
from ml.descriptors.external import External
from ml.errors import CannotDescribe, Corrupt, LikenessError


def get_external(session: Session, collection: Collection) -> External | None:
    """Return the descriptor of the vectors that are imported into a collection; None if its faces are of photos.

    Raises ml.Corrupt, as after an earlier version has restored a snapshot that was altered.
    """
    if collection.external_model is None:
        return None
    record = session.get(ModelRecord, collection.external_model)
    try:
        external = None if record is None else read_external(record.manifest)
    except (LikenessError, LookupError, TypeError, ValueError):
        external = None
    if external is None:
        raise Corrupt(
            f"{collection.external_model!r}, the model of the vectors that were imported into {collection.id!r}, is "
            "missing or damaged: restore the database from a backup, or delete the collection"
        )
    return external


def check_takes_photos(session: Session, collection: Collection) -> None:
    """Raises ml.CannotDescribe if the collection holds imported vectors, ml.Corrupt."""
    external = get_external(session, collection)
    if external is not None:
        raise CannotDescribe(external.recogniser, external.dim)


def check_model_suits(session: Session, collection: Collection, model: ModelRecord) -> None:
    """Check that the model reads what the faces of the collection have. Raises Conflict, ml.Corrupt."""
    check_external_suits(session, collection, read_external(model.manifest), f"model {model.id}")


def check_external_suits(session: Session, collection: Collection, external: External | None, reader: str) -> None:
    """Check that the faces of the collection have what somebody reads. Raises Conflict, ml.Corrupt.

    external: the imported vectors that are read; None: crops of photos
    """
    held = get_external(session, collection)
    if held != external:
        raise Conflict(
            f"{reader} reads {_name(external)}; the faces of {collection.id!r} have {_name(held)}",
            code="ExternalDescriptor",
        )


def _name(external: External | None) -> str:
    if external is None:
        return "crops of photos"
    return f"imported vectors ({external.recogniser}, {external.dim} numbers, {external.metric})"
