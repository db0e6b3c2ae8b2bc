from collections import defaultdict

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Deployment, Face, ModelRecord
from app.deps.caller import Caller
from app.deps.job_response import JobOut, accepted
from app.errors import Conflict
from app.publishing import requests
from app.publishing.requests import PublishRequest
from app.recognisers.schemas import RecogniserOut, RecognisersOut, UsedRecogniserOut, UseRecogniserIn
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.recognisers.builtin_models import ensure_model
from app.storage.recognisers.catalogue import Recogniser, find_recogniser, list_recognisers, name_recogniser
from ml import registry

TASK = "identity"
MAX_FACES_LOOKED_AT = 1000


def list_all(session: Session, resources: Resources, caller: Caller) -> RecognisersOut:
    """Every recogniser, with the collections that it serves, of those that the caller may see."""
    known = list_recognisers(resources.settings)
    serves = _serves(session, known, caller)
    return RecognisersOut(recognisers=[RecogniserOut.of(entry, serves[entry.name]) for entry in known])


def _serves(session: Session, known: list[Recogniser], caller: Caller) -> dict[str | None, list[str]]:
    champions = select(Deployment.collection_id, Deployment.champion).where(Deployment.task == TASK)
    rows = session.execute(champions.order_by(Deployment.collection_id)).all()
    models = select(ModelRecord).where(ModelRecord.id.in_({row.champion for row in rows}))
    names = {m.id: name_recogniser(m.manifest["descriptors"], known) for m in session.scalars(models)}
    serves: dict[str | None, list[str]] = defaultdict(list)
    for collection, champion in rows:
        if not caller.collections or collection in caller.collections:
            serves[names[champion]].append(collection)
    return serves


def use(
    session: Session, resources: Resources, collection: str, body: UseRecogniserIn, caller: Caller, response: Response
) -> UsedRecogniserOut | JobOut:
    """202 with the job that describes and embeds the stored crops and publishes; 200 where it serves already.

    Raises NotFound, Invalid (unknown; an override without a reason), Conflict (not installed, crops missing), and
    whatever ml raises of a recogniser whose files are not what they were.
    """
    get_collection(session, collection)
    recogniser = find_recogniser(resources.settings, body.recogniser)
    _check_crops(session, resources.blobs, collection, recogniser)
    model = ensure_model(session, resources.models, recogniser)
    session.flush()
    reason = body.reason or f"recogniser {recogniser.name}"
    if body.override:
        reason = body.reason  # an override needs words of the caller's own
    wish = PublishRequest(model, (TASK,), body.override, reason, caller.signature)
    job = requests.request_publication(session, collection, wish)
    if job is None:
        return UsedRecogniserOut(collection=collection, recogniser=recogniser.name, model=model)
    response.status_code = 202
    accepted(response, job)
    return JobOut.of(job)


def _check_crops(session: Session, blobs: Blobs, collection: str, recogniser: Recogniser) -> None:
    """Looks at the oldest faces, which may be from before a kind of crop was kept, and at the newest."""
    assert recogniser.spec is not None
    kind = registry.component("descriptors", recogniser.spec.name).crop
    faces = select(Face.image_id, Face.number).where(Face.collection_id == collection).limit(MAX_FACES_LOOKED_AT)
    some = {*session.execute(faces.order_by(Face.pk)).all(), *session.execute(faces.order_by(Face.pk.desc())).all()}
    missing = sum(not blobs.has(collection, [Blobs.crop(image, number, kind)]) for image, number in some)
    if missing:
        raise Conflict(
            f"{missing:,} of {len(some):,} faces of {collection!r} have no stored crop of the kind {kind!r}, which "
            f"{recogniser.name} describes; enrol their photos again",
            code="CropMissing",
            kind=kind,
            missing=missing,
        )
