"""Refit a model without some of the people it learned from, on the data that its training read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.lookups import get_model
from app.db.subject_ids import list_spellings
from app.db.tables import Collection, Erasure, Face, ModelRecord, Subject, Training
from app.db.visibility import ALL_ROWS
from app.errors import Conflict, Invalid
from app.galleries.erasure_receipts import hash_subject
from app.galleries.learned_collections import COLLECTIONS_CREATED_AT
from app.learning.plan import Plan
from app.storage.installation_key import InstallationKey

READ_AT = "read_at"
"""The part of a training's snapshot that says when it was made, in seconds since 1970; earlier versions made none."""
WITHOUT = "without"
"""The part of a training's snapshot that says who is left out: {collection: [keyed hash of a subject's id]}.

Refits of earlier versions hold the ids themselves.
"""
WITHOUT_PKS = "without_pks"
"""The same people by the keys of their rows, {collection: [pk]}. Those who are erased already have none."""
REFIT_OF = "refit_of"
READ_PARTS = ("changes", COLLECTIONS_CREATED_AT, READ_AT, WITHOUT, WITHOUT_PKS)
"""The parts of a training's snapshot that say whom it has read. Its labels, of which there may be 100,000, do not."""


def make_refit(
    session: Session, key: InstallationKey, model: str, collection: str | None, subjects: Sequence[str]
) -> Training:
    """Store a training that repeats the model's own, with the same data but for these subjects of a collection.

    The training and its model do not name the subjects: they may be erased later.

    collection: by default the one that the training belongs to. The subjects may be erased already.
    Raises NotFound; Conflict (CannotForget) where the model was not trained here, or where something that it builds on
    has learned from the same faces; Invalid if the model has not learned from the collection.
    """
    row = get_model(session, model)
    training = session.get(Training, row.training_id) if row.training_id else None
    if training is None or not training.snapshot:
        raise Conflict(f"there is no training of model {model} here", code="CannotForget")
    plan = Plan.model_validate(training.request)
    if plan.start_from is not None:
        raise Conflict(
            f"model {model} continues {plan.start_from}, which may have learned from the same people. Refit that one, "
            "and train again from the result",
            code="CannotForget",
        )
    learned = [choice.name for choice in plan.descriptors if choice.learns_vocabulary]
    if learned:
        raise Conflict(
            f"the vocabulary of {', '.join(learned)} was learned from crops of the collection and is shared by all "
            "trainings. Train with another descriptor",
            code="CannotForget",
        )
    left_out = collection or plan.collection
    if left_out not in training.snapshot["changes"]:
        raise Invalid(f"model {model} has not learned from collection {left_out!r}")
    spellings = {spelling for subject in subjects for spelling in list_spellings(subject)}
    stored = select(Subject.pk).where(Subject.collection_id == left_out, Subject.id.in_(spellings))
    people = {
        WITHOUT: [hash_subject(key, left_out, subject) for subject in sorted(spellings)],
        WITHOUT_PKS: session.scalars(stored).all(),
    }
    snapshot = {**training.snapshot, REFIT_OF: model}
    for part, values in people.items():
        earlier = snapshot.get(part, {})
        snapshot[part] = {**earlier, left_out: sorted({*earlier.get(left_out, ()), *values})}
    refit = Training(request=training.request, snapshot=snapshot)
    session.add(refit)
    session.flush()
    return refit


def list_models_that_learned(session: Session, collection: Collection, subject: Subject) -> list[str]:
    """List the models whose training has read a face of this subject of the collection, by id.

    Those of other collections are listed too, whoever the session belongs to: they have learned from this one.
    """
    first = select(func.min(Face.change), func.min(Face.created_at)).where(Face.subject_pk == subject.pk)
    first_change, first_created_at = session.execute(first).one()
    if first_change is None:
        return []
    read = ReadFaces(collection.id, collection.created_at, first_change, first_created_at, (subject.id,), subject.pk)
    return _list_models(session, read)


def list_models_that_read(session: Session, key: InstallationKey, erasure: Erasure) -> list[str]:
    """List the models whose training has read a face that is erased, by id. The erasure has its targets yet."""
    subject, subject_pk = erasure.targets["subject"], erasure.targets["subject_pk"]
    names = () if subject is None else (subject, hash_subject(key, erasure.collection_id, subject))
    versions = (erasure.collection_id, erasure.collection_created_at, erasure.first_change)
    first_created_at = erasure.targets.get("first_created_at") or math.inf
    return _list_models(session, ReadFaces(*versions, first_created_at, names, subject_pk, erasure.change))


@dataclass(frozen=True)
class ReadFaces:
    """Faces of a collection that a training may have read.

    first_change: the first of their last changes; first_created_at: when the first was enrolled, as far as known
    change: the one that removed them, None if they are there
    names, subject_pk: by which a refit may have left out their subject: its id and the keyed hash of it
    """

    collection: str
    collection_created_at: float
    first_change: int
    first_created_at: float
    names: tuple[str, ...]
    subject_pk: int | None
    change: int | None = None

    def is_in(self, snapshot: Mapping[str, Any], made_at: float) -> bool:
        """Whether a training with this snapshot has read any of the faces, or may have. made_at: of its model"""
        created_at = snapshot.get(COLLECTIONS_CREATED_AT, {}).get(self.collection)
        was_left_out = not set(self.names).isdisjoint(snapshot.get(WITHOUT, {}).get(self.collection, ()))
        was_left_out |= self.subject_pk in snapshot.get(WITHOUT_PKS, {}).get(self.collection, ())
        if was_left_out or created_at not in (None, self.collection_created_at):
            return False
        change = snapshot.get("changes", {}).get(self.collection)
        if change is None or (self.change is not None and change >= self.change):
            return False
        # a face that was changed since the training has a later change, also if the training has read it
        return bool(change >= self.first_change or self.first_created_at <= snapshot.get(READ_AT, made_at))


def _list_models(session: Session, faces: ReadFaces) -> list[str]:
    """List the models of trainings, and those that were fitted to the first faces of a collection."""
    made_at = func.coalesce(ModelRecord.created_at, Training.created_at)
    parts = [Training.snapshot[part] for part in READ_PARTS]
    trainings = select(Training.model, made_at, *parts).where(Training.model.is_not(None))
    trainings = trainings.outerjoin(ModelRecord, ModelRecord.id == Training.model)
    others = select(ModelRecord.id, ModelRecord.manifest, ModelRecord.created_at)
    others = others.where(ModelRecord.training_id.is_(None))
    read = list[tuple[str, Mapping[str, Any], float]]()
    for model, at, *values in session.execute(trainings, execution_options=ALL_ROWS):
        parts_read = zip(READ_PARTS, values, strict=True)
        read.append((str(model), {part: value for part, value in parts_read if value is not None}, at))
    for model, manifest, at in session.execute(others, execution_options=ALL_ROWS):
        read.append((model, manifest.get("facts", {}), at))
    return sorted(model for model, snapshot, at in read if faces.is_in(snapshot, at))
