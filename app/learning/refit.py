"""Refit a model without some of the people it learned from, on the data that its training read."""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from app.galleries.learned_collections import COLLECTIONS_CREATED_AT, READ_AT
from app.learning.plan import Plan
from app.storage.installation_key import InstallationKey

WITHOUT = "without"
"""The part of a training's snapshot that says who is left out: {collection: [keyed hash of a subject's id]}.

Refits of earlier versions hold the ids themselves.
"""
WITHOUT_PKS = "without_pks"
"""The same people by the keys of their rows, {collection: [pk]}. Those who are erased already have none."""
REFIT_OF = "refit_of"
REFIT_CHANGES = "refit_changes"
"""The part of a refit's snapshot that holds the last change of each collection when the refit was requested.

A refit reads the faces as they are then: its `changes` are those of the training that it repeats. Refits of earlier
versions have none.
"""
READ_PARTS = ("changes", COLLECTIONS_CREATED_AT, READ_AT, WITHOUT, WITHOUT_PKS, REFIT_CHANGES)
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
    snapshot = {**training.snapshot, REFIT_OF: model, REFIT_CHANGES: _read_changes(session, training.snapshot)}
    spellings = {spelling for subject in subjects for spelling in list_spellings(subject)}
    stored = select(Subject.pk).where(Subject.collection_id == left_out, Subject.id.in_(spellings))
    people = {
        WITHOUT: [hash_subject(key, left_out, subject) for subject in sorted(spellings)],
        WITHOUT_PKS: session.scalars(stored).all(),
    }
    for part, values in people.items():
        earlier = snapshot.get(part, {})
        snapshot[part] = {**earlier, left_out: sorted({*earlier.get(left_out, ()), *values})}
    _add_merged(session, key, snapshot)
    refit = Training(request=training.request, snapshot=snapshot)
    session.add(refit)
    session.flush()
    return refit


def _add_merged(session: Session, key: InstallationKey, snapshot: dict[str, Any]) -> None:
    """Leave out, too, those into whom somebody was merged who has the id of one who is left out."""
    pks = {name: set(of_people) for name, of_people in snapshot[WITHOUT_PKS].items()}
    for name, names in snapshot[WITHOUT].items():
        for pk, merged in _iterate_merged(session, name):
            if merged["id"] in names or hash_subject(key, name, merged["id"]) in names:
                pks.setdefault(name, set()).add(pk)
    snapshot[WITHOUT_PKS] = {name: sorted(of_people) for name, of_people in pks.items()}


def list_left_out(session: Session, collection: Collection, snapshot: Mapping[str, Any]) -> list[int]:
    """List the pks of those whom a training leaves out, with those into whom one of them was merged since."""
    pks = set(snapshot.get(WITHOUT_PKS, {}).get(collection.id, ()))
    if not pks:
        return []
    merged_into = {
        pk
        for pk, merged in _iterate_merged(session, collection.id)
        if merged.get("pk") in pks and merged["merged_at"] >= collection.created_at  # not restored
    }
    return sorted(pks | merged_into)


def _iterate_merged(session: Session, collection: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield those who were merged into another of the collection, each after the pk of that one."""
    people = select(Subject.pk, Subject.merged_subjects).where(
        Subject.collection_id == collection, func.json_array_length(Subject.merged_subjects) > 0
    )
    for pk, merged in session.execute(people, execution_options=ALL_ROWS):
        yield from ((pk, one) for one in merged)


def _read_changes(session: Session, snapshot: Mapping[str, Any]) -> dict[str, int]:
    """Return the last change of each collection of a snapshot that still exists."""
    created_at = snapshot.get(COLLECTIONS_CREATED_AT, {})
    rows = session.execute(
        select(Collection.id, Collection.created_at, Collection.change).where(Collection.id.in_(snapshot["changes"]))
    )
    return {row.id: row.change for row in rows if created_at.get(row.id) == row.created_at}


def list_models_that_learned(session: Session, collection: Collection, subject: Subject) -> list[str]:
    """List the models whose training has read a face of this subject of the collection, by id.

    Those of other collections are listed too, whoever the session belongs to: they have learned from this one, or from
    one that it is a copy of.
    """
    extremes = func.min(Face.change), func.max(Face.change), func.min(Face.created_at)
    first_change, last_change, first_created_at = session.execute(
        select(*extremes).where(Face.subject_pk == subject.pk)
    ).one()
    if first_change is None:
        return []
    faces = ReadFaces(
        collection=collection.id,
        collection_created_at=collection.created_at,
        copied_from=frozenset(collection.copied_from),
        first_change=first_change,
        last_change=last_change,
        first_created_at=first_created_at,
        names=frozenset({subject.id}),
        subject_pk=subject.pk,
    )
    return _list_models(session, faces)


def list_models_that_read(session: Session, key: InstallationKey, erasure: Erasure) -> list[str]:
    """List the models whose training has read a face that is erased, by id. The erasure has its targets yet."""
    targets, subject = erasure.targets, erasure.targets["subject"]
    names = () if subject is None else (subject, hash_subject(key, erasure.collection_id, subject))
    faces = ReadFaces(
        collection=erasure.collection_id,
        collection_created_at=erasure.collection_created_at,
        copied_from=frozenset(targets.get("copied_from", ())),
        first_change=erasure.first_change,
        last_change=targets.get("last_change", math.inf),
        first_created_at=targets.get("first_created_at") or math.inf,
        names=frozenset(names),
        subject_pk=targets["subject_pk"],
        change=erasure.change,
    )
    return _list_models(session, faces)


@dataclass(frozen=True)
class ReadFaces:
    """Faces of a collection that a training may have read.

    copied_from: the collections that theirs is a copy of
    first_change, last_change: of their last changes; first_created_at: when the first was enrolled, as far as known
    names, subject_pk: by which a refit may have left out their subject: its id and the keyed hash of it
    change: the one that removed them, None if they are there
    """

    collection: str
    collection_created_at: float
    copied_from: frozenset[str]
    first_change: int
    last_change: float
    first_created_at: float
    names: frozenset[str]
    subject_pk: int | None
    change: int | None = None

    def is_in(self, snapshot: Mapping[str, Any], made_at: float) -> bool:
        """Whether a training with this snapshot has read any of the faces, or may have. made_at: of its model

        The changes of a collection that this one was restored from are not comparable with its own, and nobody knows
        whom a refit has left out there: all count that may have read faces that were enrolled by then.
        """
        was_enrolled = self.first_created_at <= float(snapshot.get(READ_AT, made_at))
        changes = snapshot.get("changes", {})
        if was_enrolled and not (self.copied_from - {self.collection}).isdisjoint(changes):
            return True
        change = changes.get(self.collection)
        created_at = snapshot.get(COLLECTIONS_CREATED_AT, {}).get(self.collection, self.collection_created_at)
        if change is None or created_at > self.collection_created_at:
            return False
        if created_at < self.collection_created_at:
            return was_enrolled
        if self._were_removed(snapshot) or self._were_left_out(snapshot):
            return False
        # a face that was changed since the training has a later change, also if the training has read it
        return bool(change >= self.first_change or was_enrolled)

    def _were_removed(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether the faces were gone when the training read its data."""
        return self.change is not None and self._find_read_change(snapshot) >= self.change

    def _were_left_out(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether the training left out their subject, and no face was given to the subject since.

        A refit that has its own changes has the keys of all its people that were not erased before.
        """
        is_listed = self.subject_pk in snapshot.get(WITHOUT_PKS, {}).get(self.collection, ())
        if self.collection not in snapshot.get(REFIT_CHANGES, {}):
            is_listed |= not self.names.isdisjoint(snapshot.get(WITHOUT, {}).get(self.collection, ()))
        return bool(is_listed) and self.last_change <= self._find_read_change(snapshot)

    def _find_read_change(self, snapshot: Mapping[str, Any]) -> int:
        """Return the change of the collection as of which the training knows whose a face is."""
        return int(snapshot.get(REFIT_CHANGES, {}).get(self.collection, snapshot["changes"][self.collection]))


@dataclass(frozen=True)
class _ModelData:
    """What a model has learned from. start_from: the model that it continued; snapshot: the parts that are read"""

    model: str
    start_from: str | None
    made_at: float
    snapshot: Mapping[str, Any]


def _list_models(session: Session, faces: ReadFaces) -> list[str]:
    """List the models that have read the faces, and those that continued one of them."""
    trained = list(_iterate_trained(session))
    listed = {one.model for one in trained if faces.is_in(one.snapshot, one.made_at)}
    while continued := {one.model for one in trained if one.start_from in listed} - listed:
        listed |= continued
    return sorted(listed)


def _iterate_trained(session: Session) -> Iterator[_ModelData]:
    """Yield the models of trainings, those of other services, and those that were fitted to the first faces."""
    made_at = func.coalesce(ModelRecord.created_at, Training.created_at)
    parts = [Training.snapshot[part] for part in READ_PARTS]
    trainings = select(Training.model, Training.request["start_from"], made_at, *parts)
    trainings = trainings.where(Training.model.is_not(None)).outerjoin(ModelRecord, ModelRecord.id == Training.model)
    others = select(ModelRecord.id, ModelRecord.manifest, ModelRecord.created_at)
    others = others.where(ModelRecord.training_id.is_(None))
    for model, start_from, at, *values in session.execute(trainings, execution_options=ALL_ROWS):
        by_part = zip(READ_PARTS, values, strict=True)
        yield _ModelData(str(model), start_from, at, {part: value for part, value in by_part if value is not None})
    for model, manifest, at in session.execute(others, execution_options=ALL_ROWS):
        provenance = manifest.get("facts", {})
        yield _ModelData(model, (provenance.get("plan") or {}).get("start_from"), at, provenance)
