"""Store a batch of imported vectors as faces. Rows are inserted in bulk, without an object for each face."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from sqlalchemy import delete, exists, func, insert, select
from sqlalchemy.orm import Session

from app.db.session import stream_raw_rows
from app.db.subject_ids import compose, list_spellings
from app.db.tables import Collection, Face, Subject, now
from app.enrolment.bulk_rows import insert_columns, insert_embeddings, make_face_ids
from app.enrolment.preparation import ModelTask
from app.enrolment.vectors.row_table import VectorRow
from app.galleries.retention import find_refusal
from app.storage.embedding_codec import encode_embeddings
from ml.files import hash_bytes
from ml.types import Rows

KEYS_PER_QUERY = 10_000
VECTOR_ID_DIGITS = 32
"""Hex digits of the SHA-256 by which a vector is known: 128 bits. The id is in the table and in an index of it."""
DUPLICATE = "DUPLICATE"
Embeddings = dict[ModelTask, Rows]
"""Model and task -> (n, dim) embeddings of the vectors of a batch."""


class VectorRecord(NamedTuple):
    """A vector of a batch that can be stored. position: of its row in the batch; image_id: what it is known by"""

    position: int
    image_id: str
    row: VectorRow


@dataclass
class BatchOutcome:
    """What became of a batch. refused: position in the batch -> reason"""

    enrolled: int = 0
    refused: dict[int, str] = field(default_factory=dict)


def identify_vectors(rows: Rows) -> list[str]:
    """Return the id of each of (n, dim) vectors: the same vector again has the same id."""
    return [hash_bytes(row)[:VECTOR_ID_DIGITS] for row in encode_embeddings(rows)]


def store_batch(
    session: Session,
    collection: Collection,
    records: Sequence[VectorRecord],
    embeddings: Embeddings,
    needs_consent: bool,
) -> BatchOutcome:
    """Store the vectors of a batch as new faces of a locked collection, under a change number of their own.

    A vector that is enrolled already under the same subject and role is left as it is.
    needs_consent: see `find_refusal`
    """
    return _BatchTransaction(session, collection, embeddings, needs_consent).store(records)


@dataclass(eq=False)
class _BatchTransaction:
    """One batch in one transaction. people: composed id -> subject"""

    session: Session
    collection: Collection
    embeddings: Embeddings
    needs_consent: bool
    people: dict[str, Subject] = field(default_factory=dict)
    outcome: BatchOutcome = field(default_factory=BatchOutcome)

    def store(self, records: Sequence[VectorRecord]) -> BatchOutcome:
        last_subject = self.session.scalar(select(func.max(Subject.pk))) or 0
        kept = self._refuse_people(records)
        if not kept:
            return self.outcome
        self.collection.change += 1
        self._insert_faces(kept)
        new = self._read_new()
        self._insert_embeddings(kept, new)
        if len(new) < len(kept):
            self._check_existing(kept, new)
            self._remove_unused_subjects(last_subject)
        self.outcome.enrolled = len(records) - len(self.outcome.refused)
        return self.outcome

    def _refuse_people(self, records: Sequence[VectorRecord]) -> list[VectorRecord]:
        """Create the subjects that are new, and leave out the records of people who may not be enrolled."""
        names = {r.row.subject: r.row.external_id or r.row.subject for r in records if r.row.subject is not None}
        if not names:
            return list(records)
        self._read_people(list(names))
        refusals = {name: find_refusal(self.people.get(name), self.needs_consent) for name in names}
        created = [name for name, reason in refusals.items() if reason is None and name not in self.people]
        if created:
            at = now()
            values = [
                {"collection_id": self.collection.id, "id": name, "external_id": names[name], "created_at": at}
                for name in created
            ]
            self.session.execute(insert(Subject), values)
            self._read_people(created)
        kept = []
        for record in records:
            reason = None if record.row.subject is None else refusals[record.row.subject]
            if reason is None:
                kept.append(record)
            else:
                self.outcome.refused[record.position] = reason
        return kept

    def _read_people(self, names: Sequence[str]) -> None:
        people: list[Subject] = []
        for part in _iterate_parts([spelling for name in names for spelling in list_spellings(name)]):
            chosen = select(Subject).where(Subject.collection_id == self.collection.id, Subject.id.in_(part))
            people += self.session.scalars(chosen)
        people.sort(key=lambda person: person.id == compose(person.id))  # where there are two, the composed id wins
        self.people |= {compose(person.id): person for person in people}

    def _insert_faces(self, records: Sequence[VectorRecord]) -> None:
        """Insert the faces that do not exist yet."""
        pks: dict[str | None, int | None] = {name: person.pk for name, person in self.people.items()} | {None: None}
        rows = [record.row for record in records]
        columns = {
            "face_id": make_face_ids(len(records)),
            "collection_id": self.collection.id,
            "subject_pk": [pks[row.subject] for row in rows],
            "role": [row.role for row in rows],
            "image_id": [record.image_id for record in records],
            "number": 0,
            "external_image_id": [row.external_image_id for row in rows],
            "source": [row.source for row in rows],
            "bounding_box": "{}",
            "landmarks": "[]",
            "quality": "{}",
            "metadata": [json.dumps(row.metadata) if row.metadata else "{}" for row in rows],
            "change": self.collection.change,
            "created_at": now(),
        }
        insert_columns(self.session, Face, len(records), columns)

    def _read_new(self) -> dict[str, int]:
        """Return the ids of the vectors that were new, each with the pk of its face, in the order of enrolment."""
        faces = Face.__table__.c
        is_new = (faces.collection_id == self.collection.id, faces.change == self.collection.change)
        chosen = select(faces.image_id, faces.pk).where(*is_new).order_by(faces.pk)
        return dict(chain.from_iterable(stream_raw_rows(self.session, chosen)))

    def _insert_embeddings(self, records: Sequence[VectorRecord], new: dict[str, int]) -> None:
        """Insert the embeddings of the new faces. new: id of the vector -> pk of its face"""
        first = {record.image_id: record.position for record in reversed(records)}
        positions = [first[image_id] for image_id in new]
        for (model, task), rows in self.embeddings.items():
            insert_embeddings(self.session, model, task, list(new.values()), rows[positions])

    def _check_existing(self, records: Sequence[VectorRecord], new: dict[str, int]) -> None:
        """Refuse the vectors that are enrolled under another subject or role, be it by this batch."""
        enrolled: dict[str, tuple[int | None, str]] = {}
        for part in _iterate_parts([record.image_id for record in records]):
            chosen = select(Face.image_id, Face.subject_pk, Face.role)
            here = chosen.where(Face.collection_id == self.collection.id, Face.image_id.in_(part))
            enrolled |= {row.image_id: (row.subject_pk, row.role) for row in self.session.execute(here)}
        for record in records:
            subject = None if record.row.subject is None else self.people[record.row.subject].pk
            if enrolled[record.image_id] != (subject, record.row.role):
                self.outcome.refused[record.position] = DUPLICATE

    def _remove_unused_subjects(self, last: int) -> None:
        """Remove the subjects that this batch has created and that have no face. last: the pk of the last older one"""
        has_face = exists().where(Face.subject_pk == Subject.pk)
        here = (Subject.collection_id == self.collection.id, Subject.pk > last)
        self.session.execute(delete(Subject).where(*here, ~has_face), execution_options={"synchronize_session": False})


def _iterate_parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), KEYS_PER_QUERY):
        yield keys[start : start + KEYS_PER_QUERY]
