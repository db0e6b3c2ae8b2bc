"""The faces that a search has found: who they belong to at once, and their names when an answer shows them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from app.serving.faces.columns import DISTRACTOR, GALLERY, NO_FACES, FaceColumns, SubjectIds
from ml.types import Ids


class EnrolledFace(NamedTuple):
    """What an answer shows of an enrolled face."""

    pk: int
    face_id: str
    role: str
    subject_pk: int | None
    subject: str | None
    external_id: str | None

    @property
    def is_named(self) -> bool:
        """Whether it belongs to an enrolled person; a distractor belongs to nobody."""
        return self.subject_pk is not None and self.role != DISTRACTOR

    @property
    def owner(self) -> int:
        """A number for its person: an even one for a subject, an odd one of its own for a face without a subject."""
        return 2 * self.subject_pk if self.subject_pk is not None and self.is_named else 2 * self.pk + 1


class FoundFaces(Mapping[int, EnrolledFace]):
    """pk -> face, of those that are enrolled and may be found: see `may_be_used`.

    A face is known by its offset, which is that of its pk among those that were asked for. An answer shows few of the
    faces that a search finds, so that nothing but their owners is read before it asks for more.

    pks: (n,) what was asked for, -1 for nothing; positions: (n,) of the faces in the columns, -1 where there is none
    others: offset -> a face that is not read from the columns
    owners: (n,) `EnrolledFace.owner` at each offset, -1 where there is no face; distractors: offsets of those
    """

    def __init__(self, pks: Ids, columns: FaceColumns, positions: Ids, others: Mapping[int, EnrolledFace]) -> None:
        self._pks, self._columns, self._positions, self._others = pks, columns, positions, others
        self.owners = _read_owners(columns, positions)
        self.distractors = _find_distractors(columns, positions)
        for offset, face in others.items():
            self.owners[offset] = face.owner
            if face.role == DISTRACTOR:
                self.distractors.add(offset)

    @classmethod
    def of(cls, pks: Ids, faces: Mapping[int, EnrolledFace]) -> Self:
        """Return those of (n,) pks that are among these faces. faces: pk -> face"""
        others = {offset: faces[pk] for offset, pk in enumerate(pks.tolist()) if pk in faces}
        return cls(pks, NO_FACES, np.full(len(pks), -1, np.int64), others)

    def read_face_ids(self, offsets: Sequence[int]) -> list[str]:
        """Return the ids of the faces at these offsets, as answers show them. There must be a face at each of them."""
        if not len(self._columns.pks):
            return [self._others[offset].face_id for offset in offsets]
        positions = self._positions.take(np.array(offsets, np.int64))
        face_ids = [face_id.decode() for face_id in self._columns.face_ids.take(positions).tolist()]
        for number, face in self._list_others(offsets):
            face_ids[number] = face.face_id
        return face_ids

    def read_subjects(self, offsets: Sequence[int]) -> list[SubjectIds | None]:
        """Return the ids of the subjects of the faces at these offsets; None for a face without a subject."""
        subjects: list[SubjectIds | None] = [None] * len(offsets)
        if len(self._columns.pks):
            positions = self._positions.take(np.array(offsets, np.int64))
            subjects = self._columns.subjects.read_ids(self._columns.subject_positions.take(positions))
        for number, face in self._list_others(offsets):
            subjects[number] = None if face.subject is None else (face.subject, face.external_id)
        return subjects

    def _list_others(self, offsets: Sequence[int]) -> list[tuple[int, EnrolledFace]]:
        """Return those whose faces are not in the columns: their number among these offsets, and the face."""
        if not self._others:
            return []
        return [(number, self._others[offset]) for number, offset in enumerate(offsets) if offset in self._others]

    @cached_property
    def _offsets(self) -> dict[int, int]:
        """Pk -> offset, of the faces that were found."""
        offsets = np.flatnonzero(self.owners >= 0)
        return dict(zip(self._pks[offsets].tolist(), offsets.tolist(), strict=True))

    def __getitem__(self, pk: int) -> EnrolledFace:
        offset = self._offsets[pk]
        if offset in self._others:
            return self._others[offset]
        position = self._positions[offset]
        role = DISTRACTOR if offset in self.distractors else GALLERY
        face_id = self._columns.face_ids[position].decode()
        return EnrolledFace(pk, face_id, role, *self._columns.subjects.read(self._columns.subject_positions[position]))

    def __contains__(self, pk: object) -> bool:
        return pk in self._offsets

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __bool__(self) -> bool:
        return bool((self.owners >= 0).any())


def _read_owners(columns: FaceColumns, positions: Ids) -> Ids:
    if not len(columns.pks):
        return np.full(len(positions), -1, np.int64)
    owners: Ids = columns.owners.take(positions)
    are_missing = positions < 0
    if np.count_nonzero(are_missing):
        owners[are_missing] = -1
    return owners


def _find_distractors(columns: FaceColumns, positions: Ids) -> set[int]:
    if not columns.has_distractors:
        return set()
    return set(np.flatnonzero(columns.are_distractors.take(positions) & (positions >= 0)).tolist())
