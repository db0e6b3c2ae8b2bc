"""Columns of many faces and subjects: arrays, since a million objects would take ten times the memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids

FACE_ID_BYTES = 36
DISTRACTOR = "distractor"
GALLERY = "gallery"
SEPARATOR = b"\0"
"""Between id and external id; names have no zero byte."""

Positions = NDArray[np.int32]


SubjectIds = tuple[str, str | None]
"""Id and external id: what `SubjectName` has, as a plain tuple, which takes a quarter of the time to make."""


class SubjectName(NamedTuple):
    """The name of a subject."""

    id: str
    external_id: str | None

    def encode(self) -> bytes:
        """Return the name as bytes, which are the id alone if the external id is the same."""
        name = self.id.encode()
        if self.external_id == self.id:
            return name
        return name + SEPARATOR + (b"" if self.external_id is None else SEPARATOR + self.external_id.encode())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Return the name that `encode` made these bytes of."""
        name = encoded.decode()
        if "\0" not in name:
            return cls(name, name)
        name, _, rest = name.partition("\0")
        return cls(name, rest[1:] if rest else None)


@dataclass(frozen=True, eq=False)
class TextColumn:
    """(n,) texts in one block: text i has `lengths[i]` bytes from `starts[i]` on."""

    block: bytes
    starts: Ids
    lengths: Positions

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Self:
        """Make the column of these texts."""
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        return cls(b"".join(texts), starts, lengths)

    @classmethod
    def join(cls, columns: Sequence[Self]) -> Self:
        """Return the texts of several columns, one column after the other."""
        offsets = np.cumsum([0, *(len(column.block) for column in columns[:-1])], dtype=np.int64)
        return cls(
            b"".join([column.block for column in columns]),
            np.concatenate([column.starts + offset for column, offset in zip(columns, offsets, strict=True)]),
            np.concatenate([column.lengths for column in columns]),
        )

    def __getitem__(self, position: int) -> bytes:
        start = self.starts.item(position)
        return self.block[start : start + self.lengths.item(position)]

    def read(self, positions: Ids | Positions) -> list[bytes]:
        """Return the texts at these positions."""
        starts, block = self.starts.take(positions), self.block
        ends = starts + self.lengths.take(positions)
        return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def take(self, positions: Ids) -> Self:
        """Return the texts at these positions. Bytes of the others are dropped once they are half of all."""
        starts, lengths = self.starts[positions], self.lengths[positions]
        used = int(lengths.sum(dtype=np.int64))
        if 2 * used >= len(self.block):
            return type(self)(self.block, starts, lengths)
        ends = np.cumsum(lengths, dtype=np.int64)
        source = np.arange(used) + np.repeat(starts - (ends - lengths), lengths)
        return type(self)(np.frombuffer(self.block, np.uint8)[source].tobytes(), ends - lengths, lengths)


@dataclass(frozen=True, eq=False)
class SubjectColumns:
    """Subjects by rising pk. names: of `SubjectName.encode`; ends_of_use: (n,) seconds, see `find_end_of_use`"""

    pks: Ids
    names: TextColumn
    ends_of_use: NDArray[np.float64]

    @classmethod
    def of(cls, pks: Sequence[int], names: Sequence[bytes], ends_of_use: Sequence[float]) -> Self:
        """Make the columns of subjects in the order of their pks."""
        return cls(np.array(pks, np.int64), TextColumn.of(names), np.array(ends_of_use, np.float64))

    @cached_property
    def first_end_of_use(self) -> float:
        """The earliest of the ends of use, inf if there is none."""
        return float(self.ends_of_use.min(initial=math.inf))

    def read(self, position: int) -> tuple[int | None, str | None, str | None]:
        """Return pk, id and external id of a subject; nothing for the position -1."""
        if position < 0:
            return None, None, None
        name = self.read_name(position)
        return int(self.pks[position]), name.id, name.external_id

    def read_name(self, position: int) -> SubjectName:
        """Return the name of a subject."""
        return SubjectName.decode(self.names[position])

    def read_ids(self, positions: Positions) -> list[SubjectIds | None]:
        """Return the ids of subjects; None for the position -1."""
        are_named = positions >= 0
        if np.count_nonzero(are_named) == len(positions):
            encoded = self.names.read(positions)
            return [
                ((name := text.decode()), name) if SEPARATOR not in text else SubjectName.decode(text)
                for text in encoded
            ]
        named = iter(self.read_ids(positions[are_named]))
        return [next(named) if is_named else None for is_named in are_named.tolist()]

    def keep(self, positions: Positions) -> Self:
        """Return the subjects at these positions, some of which may be -1 or the same."""
        kept = np.unique(positions[positions >= 0]).astype(np.int64)
        return type(self)(self.pks[kept], self.names.take(kept), self.ends_of_use[kept])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the subjects of several columns in the order of their pks. Of a subject that is there twice, the last
        counts."""
        pks = np.concatenate([part.pks for part in parts])
        order = _order_last(pks)
        names = TextColumn.join([part.names for part in parts]).take(order)
        return cls(pks[order], names, np.concatenate([part.ends_of_use for part in parts])[order])


@dataclass(frozen=True, eq=False)
class FaceColumns:
    """Faces by rising pk, with their subjects. subject_positions: (n,) in `subjects`, -1 for a face without one"""

    pks: Ids
    face_ids: NDArray[np.bytes_]
    are_distractors: NDArray[np.bool_]
    subject_positions: Positions
    subjects: SubjectColumns

    @classmethod
    def of(
        cls,
        pks: Ids,
        face_ids: NDArray[np.bytes_],
        are_distractors: NDArray[np.bool_],
        subject_pks: Ids,
        subjects: SubjectColumns,
    ) -> Self:
        """Make the columns of faces, whose pks must differ, in any order. subject_pks: 0 without a subject"""
        order = np.argsort(pks, kind="stable")
        subject_pks = subject_pks[order]
        positions = np.searchsorted(subjects.pks, subject_pks)
        positions[subject_pks == 0] = -1
        return cls(pks[order], face_ids[order], are_distractors[order], np.asarray(positions, np.int32), subjects)

    @property
    def subject_pks(self) -> Ids:
        """The (n,) pks of the subjects, 0 for a face without one."""
        known = np.append(self.subjects.pks, 0)
        return known[self.subject_positions]

    @cached_property
    def _by_subject(self) -> tuple[Positions, Positions]:
        """The positions of the faces in the order of their subjects, and the positions of these subjects."""
        order = np.argsort(self.subject_positions, kind="stable").astype(np.int32)
        return order, self.subject_positions[order]

    @cached_property
    def owners(self) -> Ids:
        """The (n,) numbers of the faces' people: see `EnrolledFace.owner`."""
        are_named = (self.subject_positions >= 0) & ~self.are_distractors
        owners: Ids = 2 * self.pks + 1
        owners[are_named] = 2 * self.subjects.pks[self.subject_positions[are_named]]
        return owners

    @cached_property
    def has_distractors(self) -> bool:
        """Whether one of the faces is a distractor."""
        return bool(self.are_distractors.any())

    def count_ended(self, at: float) -> int:
        """Count the faces whose end of use has come. at: seconds since 1970"""
        return 0 if self.subjects.first_end_of_use > at else int(self._rising_ends.searchsorted(at, side="right"))

    @cached_property
    def _rising_ends(self) -> NDArray[np.float64]:
        return np.sort(self.find_ends_of_use(np.arange(len(self.pks))))

    def find_ends_of_use(self, positions: Ids) -> NDArray[np.float64]:
        """Return the ends of use of the faces at these positions, inf for a face without a subject."""
        of_subject = self.subject_positions[positions]
        return np.append(self.subjects.ends_of_use, math.inf)[of_subject]

    def find(self, pks: Ids) -> Ids:
        """Return the (n,) positions of faces, -1 for those that are not here."""
        if not len(self.pks):
            return np.full(len(pks), -1, np.int64)
        positions: Ids = self.pks.searchsorted(pks)
        are_here = self.pks.take(positions, mode="clip") == pks
        return positions if np.count_nonzero(are_here) == len(pks) else np.where(are_here, positions, -1)

    def find_faces_of(self, subject_pk: int) -> Positions:
        """Return the positions of the faces of a subject."""
        position = int(np.searchsorted(self.subjects.pks, subject_pk))
        if position == len(self.subjects.pks) or self.subjects.pks[position] != subject_pk:
            return np.empty(0, np.int32)
        order, sorted_subjects = self._by_subject
        # of the same type, so that NumPy does not copy the positions of a million faces to another one
        first, end = sorted_subjects.searchsorted(np.array([position, position + 1], np.int32))
        return order[first:end]


NO_FACE_ID = np.zeros(1, f"S{FACE_ID_BYTES}")
NO_FACES = FaceColumns(
    np.empty(0, np.int64),
    np.empty(0, f"S{FACE_ID_BYTES}"),
    np.empty(0, np.bool_),
    np.empty(0, np.int32),
    SubjectColumns(np.empty(0, np.int64), TextColumn.of([]), np.empty(0, np.float64)),
)


def encode_face_ids(face_ids: Iterable[str]) -> NDArray[np.bytes_]:
    """Return (n,) face ids as bytes of fixed width. Raises ValueError if one is no text of ASCII characters."""
    return np.array(list(face_ids), f"S{FACE_ID_BYTES}")


def _order_last(pks: Ids) -> Ids:
    """Return the positions of the different pks in their order; of equal ones, the last."""
    order = np.argsort(pks, kind="stable")
    is_last = np.append(np.diff(pks[order]) > 0, True)[: len(order)]
    return np.asarray(order[is_last], np.int64)
