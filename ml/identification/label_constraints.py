"""What settled labels mean for a search: which faces are one person, and whom a face cannot be."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self


class LabelledPair(NamedTuple):
    """A settled label of two faces. weight: 0..1, how clear the vote was"""

    face_a: int
    face_b: int
    same: bool
    weight: float = 1.0


class RuledOut(NamedTuple):
    """A face that is not a person, and the label that says so: of this face, or of one that shows the same person."""

    face: int
    label: LabelledPair


@dataclass(frozen=True, eq=False)
class LabelConstraints:
    """The constraints that settled labels put on every search, whatever model serves.

    A person is known by the number of their owner: an even one for a person with a name, an odd one for a face without
    a name (see `owner` in `from_labels`).

    joined: owner -> the owner that stands for all whom labels joined; owners that were not joined are missing
    joined_by: owner -> the label that joined it to another one
    ruled_out: owner -> the faces that are not this person
    separated: face -> the faces that are never matches of it
    contradicted: the labels "same" that have no effect, since other labels say that these are different people
    """

    joined: Mapping[int, int] = field(default_factory=dict)
    joined_by: Mapping[int, LabelledPair] = field(default_factory=dict)
    ruled_out: Mapping[int, tuple[RuledOut, ...]] = field(default_factory=dict)
    separated: Mapping[int, Mapping[int, LabelledPair]] = field(default_factory=dict)
    contradicted: tuple[LabelledPair, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.separated)

    def person(self, owner: int) -> int:
        """Return the owner that stands for the person."""
        return self.joined.get(owner, owner)

    @classmethod
    def from_labels(cls, labels: Iterable[LabelledPair], owners: Mapping[int, int]) -> Self:
        """Derive the constraints of labels about who is who.

        Labels "not the same" always hold. Labels "same" join people, the clearest first, unless that would join two
        faces that are not the same person.

        owners: face -> 2 * s for a face of the named person s, 2 * face + 1 for a face without a name
        """
        labels = sorted(labels)
        different = [label for label in labels if not label.same]
        groups = _Groups(owners)
        for label in different:
            groups.separate(label)
        contradicted = [
            label
            for label in sorted((label for label in labels if label.same), key=lambda label: (-label.weight, label))
            if not groups.join(label)
        ]
        return cls(
            groups.representatives(),
            groups.joined_by,
            _find_ruled_out(different, groups, owners),
            _find_separated(different),
            tuple(contradicted),
        )

    @classmethod
    def from_separations(cls, labels: Iterable[LabelledPair]) -> Self:
        """Derive the constraints of labels that are not about who is who: pairs that never match each other."""
        return cls(separated=_find_separated(label for label in sorted(labels) if not label.same))


class _Groups:
    """People who are joined step by step, and the pairs of people who cannot be joined."""

    def __init__(self, owners: Mapping[int, int]) -> None:
        self._owners = owners
        self._members: dict[int, set[int]] = {}  # representative -> owners, of joined people only
        self._representative: dict[int, int] = {}
        self._rivals: defaultdict[int, set[int]] = defaultdict(set)  # representative -> those it cannot be joined with
        self.joined_by: dict[int, LabelledPair] = {}

    def find(self, owner: int) -> int:
        return self._representative.get(owner, owner)

    def members(self, owner: int) -> set[int]:
        """The owners that are the same person as this one, itself included."""
        return self._members.get(self.find(owner), {owner})

    def separate(self, label: LabelledPair) -> None:
        """Note that two people cannot be joined. A label about two faces with one name says nothing about people."""
        first, second = self._owners[label.face_a], self._owners[label.face_b]
        if first != second:
            self._rivals[first].add(second)
            self._rivals[second].add(first)

    def join(self, label: LabelledPair) -> bool:
        """Join two people; return False if that contradicts a separation."""
        first, second = self._owners[label.face_a], self._owners[label.face_b]
        if first == second:
            return True
        kept, merged = sorted((self.find(first), self.find(second)), key=lambda owner: (owner % 2, owner))
        if merged in self._rivals[kept]:
            return False
        self.joined_by.setdefault(first, label)
        self.joined_by.setdefault(second, label)
        if kept != merged:
            members = self._members.setdefault(kept, {kept})
            members |= self._members.pop(merged, {merged})
            self._representative.update(dict.fromkeys(members, kept))
            for rival in self._rivals.pop(merged, ()):
                self._rivals[rival].discard(merged)
                self._rivals[rival].add(kept)
                self._rivals[kept].add(rival)
        return True

    def representatives(self) -> dict[int, int]:
        return dict(self._representative)


def _find_ruled_out(
    labels: Iterable[LabelledPair], groups: _Groups, owners: Mapping[int, int]
) -> dict[int, tuple[RuledOut, ...]]:
    """A face that is ruled out for a person rules out the nameless faces that labels say are the same as it."""
    ruled_out: defaultdict[int, dict[int, RuledOut]] = defaultdict(dict)
    for label in labels:
        for face, other in ((label.face_a, label.face_b), (label.face_b, label.face_a)):
            person = groups.find(owners[other])
            if person == groups.find(owners[face]):
                continue  # they have one name
            nameless = {owner // 2 for owner in groups.members(owners[face]) if owner % 2}
            for excluded in {face, *nameless}:
                ruled_out[person].setdefault(excluded, RuledOut(excluded, label))
    return {person: tuple(faces.values()) for person, faces in ruled_out.items()}


def _find_separated(labels: Iterable[LabelledPair]) -> dict[int, dict[int, LabelledPair]]:
    separated: defaultdict[int, dict[int, LabelledPair]] = defaultdict(dict)
    for label in labels:
        separated[label.face_a][label.face_b] = label
        separated[label.face_b][label.face_a] = label
    return dict(separated)
