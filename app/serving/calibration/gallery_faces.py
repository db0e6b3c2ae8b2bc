"""The faces of a collection, and whom they show."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from app.db.session import stream_raw_rows
from app.db.tables import Face, Subject, now
from app.galleries.retention import may_be_used
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class GalleryFaces:
    """The faces of a collection. ids: (n,) rising; subjects: (n,) pk of the person, or -1; is_distractor: (n,)"""

    ids: Ids
    subjects: Ids
    is_distractor: NDArray[np.bool_]

    def restrict_to(self, ids: Ids) -> "GalleryFaces":
        """Return the faces that have one of these ids."""
        chosen = np.isin(self.ids, ids, assume_unique=True)
        return GalleryFaces(self.ids[chosen], self.subjects[chosen], self.is_distractor[chosen])

    def name_labelled(self, labelled_subjects: Mapping[int, int]) -> "GalleryFaces":
        """Return the faces with the names that labels give them: see `LabelConstraints.labelled_subjects`."""
        labelled = np.array(sorted(labelled_subjects.items()), np.int64).reshape(-1, 2)
        labelled = labelled[np.isin(labelled[:, 0], self.ids, assume_unique=True)]
        subjects = self.subjects.copy()
        subjects[np.searchsorted(self.ids, labelled[:, 0])] = labelled[:, 1]
        return GalleryFaces(self.ids, subjects, self.is_distractor)

    def join(self, joined: Mapping[int, int]) -> "GalleryFaces":
        """Return the faces with one person for all whom labels joined: see `ServedConstraints.joined_people`."""
        owners, subjects = self.owners, self.subjects.copy()
        is_joined = np.isin(owners, list(joined))
        subjects[is_joined] = [joined[owner] // 2 for owner in owners[is_joined].tolist()]
        return GalleryFaces(self.ids, subjects, self.is_distractor & ~is_joined)

    @property
    def owners(self) -> Ids:
        """(n,) as whom each face is known: see `LabelConstraints.from_labels`."""
        return np.where(self.is_named, 2 * self.subjects, 2 * self.ids + 1)

    @property
    def is_named(self) -> NDArray[np.bool_]:
        """(n,) which faces have a name; distractors have none."""
        return (self.subjects >= 0) & ~self.is_distractor

    @property
    def people(self) -> Ids:
        """(n,) the person of each face, -1 if unknown. Each distractor counts as a separate person."""
        people = self.subjects.copy()
        nobody = (people < 0) & self.is_distractor
        people[nobody] = people.max(initial=0) + 1 + np.arange(nobody.sum())
        return people


def count_subjects(session: Session, collection: str) -> int:
    """Count the subjects of a collection who may be searched for, with or without faces."""
    usable = select(func.count()).select_from(Subject).where(Subject.collection_id == collection, may_be_used(now()))
    return session.scalar(usable) or 0


def read_faces(session: Session, collection: str) -> GalleryFaces:
    """Read the faces of a collection, of all roles.

    A million at once would keep searches waiting for most of a second: Python's lock is held until all are read.
    """
    subject, is_distractor = func.coalesce(Face.subject_pk, -1), case((Face.role == "distractor", 1), else_=0)
    chosen = select(Face.pk, subject, is_distractor).where(Face.collection_id == collection).order_by(Face.pk)
    parts = [np.array(rows, np.int64) for rows in stream_raw_rows(session, chosen)]
    ids, subjects, are_distractors = np.concatenate([np.empty((0, 3), np.int64), *parts]).T
    return GalleryFaces(np.ascontiguousarray(ids), np.ascontiguousarray(subjects), are_distractors == 1)


def read_refused_faces(session: Session, collection: str) -> Ids:
    """Return the pks of the faces of a collection that may not be found: see `may_be_used`."""
    chosen = select(Face.pk).join(Subject, Subject.pk == Face.subject_pk)
    return np.array(
        session.scalars(chosen.where(Face.collection_id == collection, ~may_be_used(now()))).all(), np.int64
    )
