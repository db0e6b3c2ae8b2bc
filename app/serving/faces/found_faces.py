"""The faces that a search has found: who they belong to at once, and their names when an answer shows them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from app.serving.faces.columns import DISTRACTOR, GALLERY, FaceColumns, SubjectColumns, SubjectName
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

    owners: pk -> `EnrolledFace.owner`; face_ids: pk -> the id that answers show; distractors: pks of those
    """

    def __init__(self, faces: Iterable[EnrolledFace] = ()) -> None:
        self._faces: dict[int, EnrolledFace] = {}
        self.owners: dict[int, int] = {}
        self.face_ids: dict[int, str] = {}
        self.distractors: set[int] = set()
        for face in faces:
            self._faces[face.pk], self.owners[face.pk], self.face_ids[face.pk] = face, face.owner, face.face_id
            if face.role == DISTRACTOR:
                self.distractors.add(face.pk)
        self._subjects: SubjectColumns | None = None
        self._subject_positions: dict[int, int] = {}

    def add_from(self, columns: FaceColumns, positions: Ids) -> None:
        """Add the faces at (n,) positions of these columns. Only one table's columns can be added."""
        keys = columns.pks.take(positions).tolist()
        if columns.has_distractors:
            self.distractors.update(columns.pks[positions[columns.are_distractors[positions]]].tolist())
        face_ids = [face_id.decode() for face_id in columns.face_ids.take(positions).tolist()]
        self.owners |= zip(keys, columns.owners.take(positions).tolist(), strict=True)
        self.face_ids |= zip(keys, face_ids, strict=True)
        self._subjects = columns.subjects
        self._subject_positions = dict(zip(keys, columns.subject_positions.take(positions).tolist(), strict=True))

    def discard(self, pk: int) -> None:
        """Leave a face out."""
        self.owners.pop(pk, None)

    def find_name(self, pk: int) -> SubjectName | None:
        """Return the name of a face's subject; None without one."""
        position = self._subject_positions.get(pk)
        if position is not None and self._subjects is not None:
            return None if position < 0 else self._subjects.read_name(position)
        face = self._faces[pk]
        return None if face.subject is None else SubjectName(face.subject, face.external_id)

    def find_role(self, pk: int) -> str:
        """Return the role of a face."""
        return DISTRACTOR if pk in self.distractors else GALLERY

    def __getitem__(self, pk: int) -> EnrolledFace:
        if pk not in self.owners:
            raise KeyError(pk)
        position = self._subject_positions.get(pk)
        if position is None or self._subjects is None:
            return self._faces[pk]
        return EnrolledFace(pk, self.face_ids[pk], self.find_role(pk), *self._subjects.read(position))

    def __contains__(self, pk: object) -> bool:
        return pk in self.owners

    def __iter__(self) -> Iterator[int]:
        return iter(self.owners)

    def __len__(self) -> int:
        return len(self.owners)
