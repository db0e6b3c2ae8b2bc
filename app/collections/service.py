"""Create, describe and delete collections."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.collections.schemas import CollectionDescriptor, CollectionIn, CollectionOut, ExternalDescriptor
from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK, Collection, Deployment, Face, Subject
from app.errors import Conflict
from app.galleries import deletion
from app.galleries.external_descriptors import get_external
from app.queue.moments import find_creation_moment
from app.resources import Resources
from app.storage.recognisers.builtin_models import ensure_model, keep_model
from app.storage.recognisers.catalogue import find_recogniser
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.external import External
from ml.errors import Corrupt


def put_collection(
    session: Session, resources: Resources, collection_id: str, body: CollectionIn
) -> tuple[Collection, bool]:
    """Create or change a collection. Returns it, and whether it is new.

    A new collection is served by the recogniser in the body, or by the default one; one of imported vectors by the
    model that compares them as they are.
    Raises Invalid if the recogniser is unknown, Conflict if it is not installed, or if the collection has another one
    or is being deleted.
    """
    external = None if body.descriptor is None else _keep_external_model(session, resources, body.descriptor)
    model = external or _find_model(session, resources, body.recogniser)
    collection = session.get(Collection, collection_id)
    if collection is None:
        collection = Collection(id=collection_id, description=body.description, external_model=external)
        collection.created_at = find_creation_moment(session, collection_id)
        deployment = Deployment(collection_id=collection_id, task=BUILT_IN_TASK, champion=model)
        try:
            with session.begin_nested():
                session.add_all([collection, deployment])
            return collection, True
        except IntegrityError:  # another request has made it meanwhile
            collection = session.get(Collection, collection_id)
    if collection is None or collection.is_deleted:
        raise _describe_deletion(collection_id)
    if external is not None and collection.external_model != external:
        raise Conflict(f"the collection {collection_id!r} exists and has another descriptor; make another one")
    if body.recogniser is not None:
        _check_served_by(session, collection_id, body.recogniser, model)
    collection.description = body.description or collection.description
    return collection, False


def _describe_deletion(collection_id: str) -> Conflict:
    return Conflict(
        f"the collection {collection_id!r} is being deleted, and its faces are still stored: create it again once they "
        f"are gone. GET /v1/jobs?kind=erase&collection={collection_id} counts them"
    )


def _keep_external_model(session: Session, resources: Resources, descriptor: CollectionDescriptor) -> str:
    """Keep the model of imported vectors, and return its id."""
    vectors = descriptor.external
    external = External(recogniser=vectors.name, size=vectors.dim, metric=vectors.metric)
    model = keep_model(session, resources.models, make_external_model(external))
    session.flush()
    return model


def _find_model(session: Session, resources: Resources, recogniser: str | None) -> str:
    """Return the id of the model that a recogniser serves with, None meaning the default recogniser."""
    if recogniser is None:
        return resources.default_recogniser.model_id
    model = ensure_model(session, resources.models, find_recogniser(resources.settings, recogniser))
    session.flush()
    return model


def _check_served_by(session: Session, collection_id: str, recogniser: str, model: str) -> None:
    deployment = session.get(Deployment, (collection_id, BUILT_IN_TASK))
    if deployment is None or deployment.champion != model:
        raise Conflict(
            f"the collection {collection_id!r} exists and is not served by {recogniser}; to change its recogniser, "
            f"POST /v1/collections/{collection_id}:use-recogniser"
        )


def delete_collection(session: Session, collection_id: str) -> str:
    """Delete a collection, and cancel the jobs that work for it. Returns the id of the erasure. Raises NotFound.

    A job deletes the rows of a large one, and erases everything else.
    """
    return deletion.delete_collection(session, get_collection(session, collection_id, lock=True)).id


def describe_collections(session: Session, collections: Sequence[Collection]) -> list[CollectionOut]:
    """Describe collections, each with the numbers of its faces and subjects."""
    ids = [c.id for c in collections]
    faces = _count_rows(session, Face, ids)
    subjects = _count_rows(session, Subject, ids)
    described = []
    for c in collections:
        descriptor, damage = _describe_descriptor(session, c)
        out = CollectionOut(
            id=c.id,
            description=c.description,
            face_count=faces.get(c.id, 0),
            subject_count=subjects.get(c.id, 0),
            change=c.change,
            descriptor=descriptor,
            damage=damage,
            created_at=c.created_at,
        )
        described.append(out)
    return described


def _count_rows(session: Session, row: type[Face] | type[Subject], ids: list[str]) -> dict[str, int]:
    counted = select(row.collection_id, func.count()).where(row.collection_id.in_(ids)).group_by(row.collection_id)
    return dict(session.execute(counted).all())


def _describe_descriptor(session: Session, collection: Collection) -> tuple[CollectionDescriptor | None, str | None]:
    """Return the descriptor of imported vectors, and why it cannot be read: one collection's spoils no list."""
    try:
        external = get_external(session, collection)
    except Corrupt as error:
        return None, str(error)
    if external is None:
        return None, None
    described = ExternalDescriptor(name=external.recogniser, dim=external.dim, metric=external.metric)
    return CollectionDescriptor(external=described), None
