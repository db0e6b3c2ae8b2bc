"""The faces that a search has found: who they belong to at once, and their names when an answer shows them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from app.serving.faces.columns import DISTRACTOR, GALLERY, FaceColumns
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

    owners: pk -> `EnrolledFace.owner`; distractors: pks of the faces with that role
    """

    def __init__(self, faces: Iterable[EnrolledFace] = ()) -> None:
        self._faces = {face.pk: face for face in faces}
        self.owners = {pk: face.owner for pk, face in self._faces.items()}
        self.distractors = {pk for pk, face in self._faces.items() if face.role == DISTRACTOR}
        self._columns: FaceColumns | None = None
        self._positions: dict[int, int] = {}

    def add_from(self, columns: FaceColumns, positions: Ids) -> None:
        """Add the faces at (n,) positions of these columns. Only one table's columns can be added."""
        pks, of_subject, are_distractors = (
            columns.pks[positions], columns.subject_positions[positions], columns.are_distractors[positions],
        )  # fmt: skip
        are_named = of_subject >= 0
        if are_distractors.any():
            self.distractors |= set(pks[are_distractors].tolist())
            are_named &= ~are_distractors
        owners = 2 * pks + 1
        owners[are_named] = 2 * columns.subjects.pks[of_subject[are_named]]
        keys = pks.tolist()
        self.owners |= zip(keys, owners.tolist(), strict=True)
        self._columns, self._positions = columns, dict(zip(keys, positions.tolist(), strict=True))

    def discard(self, pk: int) -> None:
        """Leave a face out."""
        self.owners.pop(pk, None)

    def read_face_id(self, pk: int) -> str:
        """Return the id of a face. Raises KeyError."""
        position = self._positions.get(pk)
        if position is None or self._columns is None:
            return self._faces[pk].face_id
        return self._columns.face_ids[position].decode()  # type: ignore[no-any-return]

    def __getitem__(self, pk: int) -> EnrolledFace:
        if pk not in self.owners:
            raise KeyError(pk)
        position = self._positions.get(pk)
        if position is None or self._columns is None:
            return self._faces[pk]
        columns = self._columns
        role = DISTRACTOR if pk in self.distractors else GALLERY
        name = columns.subjects.read(int(columns.subject_positions[position]))
        return EnrolledFace(pk, self.read_face_id(pk), role, *name)

    def __contains__(self, pk: object) -> bool:
        return pk in self.owners

    def __iter__(self) -> Iterator[int]:
        return iter(self.owners)

    def __len__(self) -> int:
        return len(self.owners)
