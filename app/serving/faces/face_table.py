"""The faces of a collection in memory: what an answer says about a face, as of one change of the collection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.serving.faces.columns import (
    DISTRACTOR,
    NO_FACE_ID,
    NO_FACES,
    FaceColumns,
    SubjectColumns,
    SubjectName,
    encode_face_ids,
)
from app.serving.faces.found_faces import EnrolledFace, FoundFaces
from ml.types import Ids

MIN_MERGED_CHANGES, MERGED_FRACTION = 1024, 1 / 32
"""Changes are merged into the columns once there are that many, and that many of the faces in the columns."""


class ChangedFace(NamedTuple):
    """A face that was enrolled or changed. end_of_use: of its subject, see `find_end_of_use`"""

    face: EnrolledFace
    end_of_use: float


@dataclass(frozen=True, eq=False)
class FaceTable:
    """The faces of a collection, which never change: an update makes a new table that shares most of its memory.

    change: the collection's last change that it contains
    columns: most faces; changed: pk -> the face as it was changed later, None if it was deleted
    changed_of: subject pk -> pks of its faces among the changed ones
    """

    change: int
    columns: FaceColumns
    changed: Mapping[int, ChangedFace | None] = field(default_factory=dict)
    changed_of: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def read(self, pks: Ids, at: float) -> FoundFaces:
        """Return those of (n,) pks that are enrolled and may be found: see `may_be_used`. at: seconds since 1970"""
        positions = self._drop_ended(self.columns.find(pks), at)
        if not self.changed:
            return FoundFaces(pks, self.columns, positions, {})
        changed = [(offset, self.changed[pk]) for offset, pk in enumerate(pks.tolist()) if pk in self.changed]
        positions[[offset for offset, _ in changed]] = -1
        others = {offset: known.face for offset, known in changed if known is not None and known.end_of_use > at}
        return FoundFaces(pks, self.columns, positions, others)

    def read_face_ids(self, pks: Ids) -> NDArray[np.bytes_]:
        """Return the ids of the faces with these (n,) pks, empty for those that are not enrolled."""
        face_ids = np.append(self.columns.face_ids, NO_FACE_ID)[self.columns.find(pks)]
        for offset, pk in enumerate(pks.tolist() if self.changed else ()):
            if pk in self.changed:
                known = self.changed[pk]
                face_ids[offset] = known.face.face_id.encode() if known else b""
        return face_ids

    def count_ended(self, at: float) -> int:
        """Count the faces that are enrolled and may not be found any more. at: seconds since 1970"""
        return self.columns.count_ended(at) + sum(
            sign * int(ends.searchsorted(at, side="right")) for sign, ends in self._changed_ends
        )

    @property
    def has_rivals(self) -> bool:
        """Whether there may be people with a name, or distractors."""
        return bool(len(self.columns.subjects.pks) or self.columns.has_distractors or self.changed)

    @cached_property
    def _changed_ends(self) -> tuple[tuple[int, NDArray[np.float64]], ...]:
        """The rising ends of use of the changed faces: as the columns have them, to be subtracted, and as they are."""
        if not self.changed:
            return ()
        positions = self.columns.find(np.array(list(self.changed), np.int64))
        former = self.columns.find_ends_of_use(positions[positions >= 0])
        present = [known.end_of_use for known in self.changed.values() if known is not None]
        return (-1, np.sort(former)), (1, np.sort(np.array(present, np.float64)))

    def list_gallery_faces(self, subject_pk: int) -> list[int]:
        """Return the pks of a subject's faces, without distractors."""
        columns, positions = self.columns, self.columns.find_faces_of(subject_pk)
        pks = columns.pks[positions[~columns.are_distractors[positions]]].tolist()
        unchanged = [pk for pk in pks if pk not in self.changed]
        changed = (self.changed[pk] for pk in sorted(self.changed_of.get(subject_pk, ())))
        return unchanged + [c.face.pk for c in changed if c is not None and c.face.role != DISTRACTOR]

    def count_faces_of(self, subject_pk: int) -> int:
        """Count the faces of a subject: at least as many as `list_gallery_faces` lists."""
        return len(self.columns.find_faces_of(subject_pk)) + len(self.changed_of.get(subject_pk, ()))

    def update(self, changed: Sequence[ChangedFace], removed: Sequence[int], change: int) -> "FaceTable":
        """Return the table after these faces were enrolled or changed, and those with these pks deleted."""
        if not changed and not removed:
            return FaceTable(change, self.columns, self.changed, self.changed_of)
        faces = dict(self.changed) | {c.face.pk: c for c in changed} | dict.fromkeys(removed)
        if len(faces) > max(MIN_MERGED_CHANGES, MERGED_FRACTION * len(self.columns.pks)):
            return FaceTable(change, _merge(self.columns, faces))
        changed_of: dict[int, set[int]] = {}
        for pk, known in faces.items():
            if known is not None and known.face.subject_pk is not None:
                changed_of.setdefault(known.face.subject_pk, set()).add(pk)
        return FaceTable(change, self.columns, faces, {s: frozenset(pks) for s, pks in changed_of.items()})

    def _drop_ended(self, positions: Ids, at: float) -> Ids:
        """Return (n,) positions of faces with -1 for those whose end of use has come."""
        columns, subjects = self.columns, self.columns.subjects
        if subjects.first_end_of_use > at or not len(columns.pks):
            return positions
        of_subject = columns.subject_positions.take(positions, mode="clip")
        has_ended = (of_subject >= 0) & (subjects.ends_of_use.take(of_subject, mode="clip") <= at)
        return np.where(has_ended, -1, positions)


EMPTY = FaceTable(-1, NO_FACES)


def _merge(columns: FaceColumns, changed: Mapping[int, ChangedFace | None]) -> FaceColumns:
    """Return the columns after these changes. Subjects that have no face any more are left out."""
    kept = np.isin(columns.pks, list(changed), invert=True)
    faces = [c for c in changed.values() if c is not None]
    named = {
        c.face.subject_pk: (SubjectName(str(c.face.subject), c.face.external_id).encode(), c.end_of_use)
        for c in faces
        if c.face.subject_pk is not None
    }
    pks = sorted(named)
    new = SubjectColumns.of(pks, [named[pk][0] for pk in pks], [named[pk][1] for pk in pks])
    return FaceColumns.of(
        np.concatenate([columns.pks[kept], np.array([c.face.pk for c in faces], np.int64)]),
        np.concatenate([columns.face_ids[kept], encode_face_ids(c.face.face_id for c in faces)]),
        np.concatenate([columns.are_distractors[kept], np.array([c.face.role == DISTRACTOR for c in faces], np.bool_)]),
        np.concatenate([columns.subject_pks[kept], np.array([c.face.subject_pk or 0 for c in faces], np.int64)]),
        SubjectColumns.join([columns.subjects.keep(columns.subject_positions[kept]), new]),
    )
