"""Plant faults into a gallery of named faces: the kinds that `likeness doctor` looks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.model import Model
from ml.types import Rows

BLENDED_PEOPLE = 5
ADDED_STRANGERS = 8
BLEND, STRANGERS_ADDED = "blend", "strangers added"
"""Two ways to plant a subject who is named for strangers."""


class EnrolledFace(NamedTuple):
    """row: the embedding, (d,); quality: name -> value"""

    row: Rows
    quality: dict[str, float]


class FaceSet(Protocol):
    """Faces of people, and what faulty photos of them give. model: calibrated; names: the person of each face"""

    @property
    def model(self) -> Model: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def faces(self) -> Sequence[EnrolledFace]: ...

    def degrade(self, position: int, draw: np.random.Generator) -> EnrolledFace | None:
        """Return the face in a blurred, small or pale copy of its photo; None if enrolment refuses the copy."""


@dataclass(frozen=True)
class Fault:
    """A planted fault, or a finding. faces: their positions in the gallery

    way: how the fault was planted, where a kind has two ways
    """

    kind: str
    subjects: frozenset[str]
    faces: frozenset[int] = frozenset()
    way: str = ""

    def is_found_by(self, finding: "Fault") -> bool:
        """Whether a finding names the fault. The groups of a mixture and the face that strangers match may differ."""
        is_about_faces = self.kind in ("wrong_name", "poor_face")
        is_same = (self.kind, self.subjects) == (finding.kind, finding.subjects)
        return is_same and (not is_about_faces or self.faces == finding.faces)


@dataclass(eq=False)
class FaultyGallery:
    """A gallery with the faults that were planted into it. names: None for faces of nobody

    refused: degraded photos that enrolment refuses
    """

    names: list[str | None]
    faces: list[EnrolledFace]
    faults: list[Fault] = field(default_factory=list)
    refused: int = 0


def plant_faults(faces: FaceSet, count: int, seed: int, min_photos: int = 2) -> FaultyGallery:
    """Plant `count` faults of each kind, each into people of their own.

    min_photos: of the people of duplicates, mixtures and wrong names. Raises StopIteration if there are too few people.
    """
    return _Planter(faces, np.random.default_rng(seed), min_photos).plant(count)


class _Planter:
    def __init__(self, faces: FaceSet, draw: np.random.Generator, min_photos: int) -> None:
        self._source, self._draw, self._min_photos = faces, draw, min_photos
        self._rows = np.stack([face.row for face in faces.faces])
        self._gallery = FaultyGallery(list(faces.names), list(faces.faces))
        people: dict[str, list[int]] = {}
        for position, name in enumerate(faces.names):
            people.setdefault(name, []).append(position)
        order = [list(people)[i] for i in draw.permutation(len(people))]
        self._people = {name: draw.permutation(people[name]) for name in order}

    def plant(self, count: int) -> FaultyGallery:
        kinds: list[Callable[[int], Any]] = [
            self._enrol_twice, self._mix_people, self._name_wrongly, self._enrol_blend, self._degrade_face,
            self._add_strangers,
        ]  # fmt: skip
        for plant in kinds:
            for number in range(count):
                plant(number)
        return self._gallery

    def _take_person(self, min_photos: int) -> tuple[str, NDArray[np.int64]]:
        """Return a person without a fault and the positions of the faces, in random order."""
        name = next(name for name, positions in self._people.items() if len(positions) >= min_photos)
        return name, self._people.pop(name)

    def _rename(self, positions: NDArray[np.int64], name: str | None) -> None:
        for position in positions:
            self._gallery.names[position] = name

    def _add(self, kind: str, *subjects: str, face: int | None = None, way: str = "") -> None:
        faces = frozenset[int]() if face is None else frozenset({face})
        self._gallery.faults.append(Fault(kind, frozenset(subjects), faces, way))

    def _enrol_twice(self, number: int) -> None:
        name, positions = self._take_person(self._min_photos)
        other = f"{name} again"
        self._rename(positions[: self._draw.integers(1, len(positions))], other)
        self._add("duplicate", name, other)

    def _mix_people(self, number: int) -> None:
        name, _ = self._take_person(self._min_photos)
        self._rename(self._take_person(self._min_photos)[1], name)
        self._add("mixture", name)

    def _name_wrongly(self, number: int) -> None:
        (name, positions), (other, _) = self._take_person(self._min_photos), self._take_person(self._min_photos)
        self._rename(positions[:1], other)
        self._add("wrong_name", name, other, face=int(positions[0]))

    def _enrol_blend(self, number: int) -> None:
        row, name = self._blend_lookalikes(), f"blend {number}"
        self._gallery.names.append(name)
        self._gallery.faces.append(EnrolledFace(row, {}))
        self._add("named_for_strangers", name, way=BLEND)

    def _add_strangers(self, number: int) -> None:
        """Give a person one face each of other people, whose other faces lose their names."""
        name, _ = self._take_person(1)
        for _ in range(ADDED_STRANGERS):
            _, (first, *others) = self._take_person(2)
            self._rename(np.array([first]), name)
            self._rename(np.array(others), None)
        self._add("named_for_strangers", name, way=STRANGERS_ADDED)

    def _blend_lookalikes(self) -> Rows:
        """Return the mean of a random face and of the nearest faces of other people, as long as a face's row."""
        [centre] = self._rows[self._draw.integers(len(self._rows), size=1)]
        order = np.argsort(self._source.model.metric.distances(centre[None], self._rows)[0])
        nearest: dict[str, int] = {}
        for position in order:
            nearest.setdefault(self._source.names[position], position)
            if len(nearest) == BLENDED_PEOPLE:
                break
        mean: Rows = self._rows[list(nearest.values())].mean(axis=0)
        return mean * np.linalg.norm(centre) / np.linalg.norm(mean)

    def _degrade_face(self, number: int) -> None:
        while True:
            name, positions = self._take_person(1)
            position = int(positions[0])
            face = self._source.degrade(position, self._draw)
            if face is not None:
                break
            self._gallery.refused += 1
        self._gallery.faces[position] = face
        self._add("poor_face", name, face=position)
