"""Refit a model without some of the people it learned from, on the data that its training read."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.lookups import get_model
from app.db.tables import Collection, Face, Subject, Training
from app.errors import Conflict, Invalid
from app.learning.plan import Plan

WITHOUT = "without"
"""The part of a training's snapshot that names the people who are left out: {collection: [subject id]}."""
REFIT_OF = "refit_of"


def make_refit(session: Session, model: str, collection: str | None, subjects: Sequence[str]) -> Training:
    """Store a training that repeats the model's own, with the same data but for these subjects of a collection.

    collection: by default the one that the training belongs to. The subjects may be erased already.
    Raises NotFound; Conflict (CannotForget) where the model was not trained here, or where something that it builds on
    has learned from the same faces; Invalid if the model has not learned from the collection.
    """
    row = get_model(session, model)
    training = session.get(Training, row.training_id) if row.training_id else None
    if training is None or not training.snapshot:
        raise Conflict(f"model {model} was not made by a training of this service", code="CannotForget")
    plan = Plan.model_validate(training.request)
    if plan.start_from is not None:
        raise Conflict(
            f"model {model} continues {plan.start_from}, which may have learned from the same people. Refit that one, "
            "and train again from the result",
            code="CannotForget",
        )
    learned = [choice.name for choice in plan.descriptors if choice.model_copy(update={"options": {}}).needs_vocabulary]
    if learned:
        raise Conflict(
            f"the vocabulary of {', '.join(learned)} was learned from crops of the collection and is shared by all "
            "trainings. Train with another descriptor",
            code="CannotForget",
        )
    left_out = collection or plan.collection
    if left_out not in training.snapshot["changes"]:
        raise Invalid(f"model {model} has not learned from collection {left_out!r}")
    without = {name: list(ids) for name, ids in training.snapshot.get(WITHOUT, {}).items()}
    without[left_out] = sorted({*without.get(left_out, ()), *subjects})
    refit = Training(request=training.request, snapshot={**training.snapshot, WITHOUT: without, REFIT_OF: model})
    session.add(refit)
    session.flush()
    return refit


def list_models_that_learned(session: Session, collection: Collection, subject: Subject) -> list[str]:
    """List the models whose training has read a face of this subject of the collection, by id."""
    first = session.scalar(select(func.min(Face.change)).where(Face.subject_pk == subject.pk))
    if first is None:
        return []
    trainings = session.execute(select(Training.model, Training.snapshot).where(Training.model.is_not(None)))
    return sorted(model for model, snapshot in trainings if model and _has_read(snapshot, collection, subject, first))


def _has_read(snapshot: Mapping[str, Any], collection: Collection, subject: Subject, change: int) -> bool:
    created_at = snapshot.get("collections_created_at", {}).get(collection.id)
    was_left_out = subject.id in snapshot.get(WITHOUT, {}).get(collection.id, ())
    if was_left_out or created_at not in (None, collection.created_at):
        return False
    return bool(snapshot.get("changes", {}).get(collection.id, -1) >= change)
