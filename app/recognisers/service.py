"""List recognisers, and let a collection use one."""

from collections import defaultdict
from pathlib import Path

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK, Deployment, Face, ModelRecord
from app.deps.caller import Caller
from app.deps.job_response import JobOut, point_to_job
from app.errors import Conflict
from app.galleries.external_descriptors import check_takes_photos
from app.publishing import requests
from app.publishing.requests import PublishRequest
from app.recognisers.schemas import RecogniserOut, RecognisersOut, UsedRecogniserOut, UseRecogniserIn
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.recognisers.builtin_models import ensure_model
from app.storage.recognisers.catalogue import Recogniser, find_recogniser, list_recognisers, name_recogniser
from app.storage.recognisers.component_files import find_descriptor_files
from ml import registry

MAX_CHECKED_FACES = 1000


def list_recognisers_in_use(session: Session, resources: Resources) -> RecognisersOut:
    """List all recognisers, each with the collections that it serves."""
    known = list_recognisers(resources.settings)
    serves = _find_collections_served(session, known, resources.settings.home)
    return RecognisersOut(recognisers=[RecogniserOut.of(entry, serves[entry.name]) for entry in known])


def _find_collections_served(session: Session, known: list[Recogniser], home: Path) -> dict[str | None, list[str]]:
    champions = select(Deployment.collection_id, Deployment.champion).where(Deployment.task == BUILT_IN_TASK)
    rows = session.execute(champions.order_by(Deployment.collection_id)).all()
    models = select(ModelRecord).where(ModelRecord.id.in_({row.champion for row in rows}))
    descriptors = {m.id: find_descriptor_files(m.manifest, home) for m in session.scalars(models)}
    names = {model: name_recogniser(of_model, known) for model, of_model in descriptors.items()}
    serves: dict[str | None, list[str]] = defaultdict(list)
    for collection, champion in rows:
        serves[names[champion]].append(collection)
    return serves


def use_recogniser(
    session: Session, resources: Resources, collection: str, body: UseRecogniserIn, caller: Caller, response: Response
) -> UsedRecogniserOut | JobOut:
    """Publish the recogniser's model: 202 with the job, or 200 if it serves at once.

    Raises NotFound, Invalid (an unknown recogniser, an override without a reason), Conflict (not installed, crops
    missing), ml.Unavailable or ml.Corrupt if its files were altered.
    """
    check_takes_photos(session, get_collection(session, collection))
    recogniser = find_recogniser(resources.settings, body.recogniser)
    _check_crops(session, resources.blobs, collection, recogniser)
    model = ensure_model(session, resources.models, recogniser)
    session.flush()
    reason = body.reason or f"recogniser {recogniser.name}"
    if body.override:
        reason = body.reason  # an override needs a reason from the caller
    request = PublishRequest(model, (BUILT_IN_TASK,), body.override, reason, caller.signature)
    job = requests.request_publication(session, collection, request)
    if job is None:
        return UsedRecogniserOut(collection=collection, recogniser=recogniser.name, model=model)
    response.status_code = 202
    point_to_job(response, job)
    return JobOut.of(job)


def _check_crops(session: Session, blobs: Blobs, collection: str, recogniser: Recogniser) -> None:
    """Check that the oldest and the newest faces have the crops that the recogniser needs. Raises Conflict.

    Faces that an early version enrolled may lack a kind of crop.
    """
    assert recogniser.spec is not None
    kind = registry.component("descriptors", recogniser.spec.name).crop
    faces = select(Face.image_id, Face.number).where(Face.collection_id == collection).limit(MAX_CHECKED_FACES)
    checked = {*session.execute(faces.order_by(Face.pk)).all(), *session.execute(faces.order_by(Face.pk.desc())).all()}
    missing = sum(not blobs.has(collection, [Blobs.crop(image, number, kind)]) for image, number in checked)
    if missing:
        raise Conflict(
            f"{missing:,} of {len(checked):,} faces of {collection!r} have no stored crop of the kind {kind!r}, which "
            f"{recogniser.name} describes; enrol their photos again",
            code="CropMissing",
            kind=kind,
            missing=missing,
        )
