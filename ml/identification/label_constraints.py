"""What settled labels mean for a search: which faces are one person, and whom a face cannot be."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
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
    ruled_out: owner -> the faces that are not this person, in rising order
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
    def from_labels(cls, labels: Iterable[LabelledPair], owners: Mapping[int, int]) -> "LabelConstraints":
        """Derive the constraints of labels about who is who.

        Labels "not the same" always hold. Labels "same" join people, the clearest first, unless that would join two
        faces that are not the same person.

        owners: face -> 2 * s for a face of the named person s, 2 * face + 1 for a face without a name
        """
        builder = ConstraintBuilder(owners)
        builder.add(labels)
        return builder.build()

    @classmethod
    def from_separations(cls, labels: Iterable[LabelledPair]) -> Self:
        """Derive the constraints of labels that are not about who is who: pairs that never match each other."""
        separated: defaultdict[int, dict[int, LabelledPair]] = defaultdict(dict)
        for label in sorted(label for label in labels if not label.same):
            _separate_faces(separated, label)
        return cls(separated=dict(separated))


class ConstraintBuilder:
    """Derive constraints from labels that are added step by step: see `LabelConstraints.from_labels`.

    What an addition costs depends on the people that its labels are about, not on the labels that were added before.

    owners: face -> owner, of every labelled face; the caller adds the faces of new labels to it
    """

    def __init__(self, owners: Mapping[int, int]) -> None:
        self._owners = owners
        self._groups = _Groups(owners)
        self._different: defaultdict[int, list[LabelledPair]] = defaultdict(list)  # owner -> labels of their faces
        self._ruled_out: dict[int, tuple[RuledOut, ...]] = {}
        self._separated: defaultdict[int, dict[int, LabelledPair]] = defaultdict(dict)
        self._contradicted: list[LabelledPair] = []

    def add(self, labels: Iterable[LabelledPair]) -> bool:
        """Add labels of pairs that have none yet.

        Return False if all labels have to be added at once to a new builder, since the new ones change what earlier
        ones mean: then this one is of no more use.
        """
        labels = sorted(labels)
        changed: set[int] = set()
        is_first = not self._separated and not self._groups.joined_by
        for label in labels:
            if not label.same:
                if self._groups.are_joined(label) and not self._have_one_name(label):
                    return False
                self._separate(label, changed)
        for label in sorted((label for label in labels if label.same), key=_order_of_joining):
            joined = self._groups.join(label)
            if joined is None:
                if not is_first:
                    return False
                self._contradicted.append(label)
            else:
                changed |= joined
        for owner in changed:
            self._ruled_out.pop(owner, None)
        for person in {self._groups.find(owner) for owner in changed}:
            self._rule_out(person)
        return True

    def person(self, owner: int) -> int:
        """Return the owner that stands for the person."""
        return self._groups.find(owner)

    def members(self, owner: int) -> Set[int]:
        """Return the owners that are the same person as this one, itself included."""
        return self._groups.members(owner)

    def build(self) -> LabelConstraints:
        """Return the constraints of all labels so far. Later additions do not change them."""
        return LabelConstraints(
            self._groups.representatives(),
            dict(self._groups.joined_by),
            dict(self._ruled_out),
            dict(self._separated),
            tuple(self._contradicted),
        )

    def _have_one_name(self, label: LabelledPair) -> bool:
        return self._owners[label.face_a] == self._owners[label.face_b]

    def _separate(self, label: LabelledPair, changed: set[int]) -> None:
        """changed: takes the owners whose ruled out faces are to be found anew"""
        self._groups.separate(label)
        for face in label[:2]:
            self._separated[face] = dict(self._separated[face])  # one that was built keeps its own
        _separate_faces(self._separated, label)
        for owner in {self._owners[face] for face in label[:2]}:
            self._different[owner].append(label)
            changed.add(owner)

    def _rule_out(self, person: int) -> None:
        """Find the faces that are not this person, each with the first label that says so.

        A face that is ruled out for a person rules out the nameless faces that labels say are the same as it.
        """
        members = self._groups.members(person)
        ruled_out: dict[int, LabelledPair] = {}
        for label in {label for owner in members for label in self._different.get(owner, ())}:
            for face, other in ((label.face_a, label.face_b), (label.face_b, label.face_a)):
                if self._owners[other] not in members or self._owners[face] in members:
                    continue  # it is about the other one's person, or both have one name
                nameless = {owner // 2 for owner in self._groups.members(self._owners[face]) if owner % 2}
                for excluded in {face, *nameless}:
                    ruled_out[excluded] = min(ruled_out.get(excluded, label), label)
        if ruled_out:
            self._ruled_out[person] = tuple(RuledOut(face, label) for face, label in sorted(ruled_out.items()))


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

    def are_joined(self, label: LabelledPair) -> bool:
        """Tell whether both faces show one person."""
        return self.find(self._owners[label.face_a]) == self.find(self._owners[label.face_b])

    def separate(self, label: LabelledPair) -> None:
        """Note that two people cannot be joined. A label about two faces with one name says nothing about people."""
        first, second = self.find(self._owners[label.face_a]), self.find(self._owners[label.face_b])
        if first != second:
            self._rivals[first].add(second)
            self._rivals[second].add(first)

    def join(self, label: LabelledPair) -> set[int] | None:
        """Join two people.

        Return the people of whom other faces are ruled out then: none if they were one person already. Return None if
        a separation keeps them apart.
        """
        first, second = self._owners[label.face_a], self._owners[label.face_b]
        if first == second:
            return set()
        kept, merged = sorted((self.find(first), self.find(second)), key=lambda owner: (owner % 2, owner))
        if merged in self._rivals.get(kept, ()):
            return None
        for owner in (first, second):
            self.joined_by[owner] = min(self.joined_by.get(owner, label), label, key=_order_of_joining)
        return set() if kept == merged else self._merge(kept, merged)

    def _merge(self, kept: int, merged: int) -> set[int]:
        members = self._members.setdefault(kept, {kept})
        members |= self._members.pop(merged, {merged})
        self._representative.update(dict.fromkeys(members, kept))
        for rival in self._rivals.pop(merged, ()):
            self._rivals[rival].discard(merged)
            self._rivals[rival].add(kept)
            self._rivals[kept].add(rival)
        return {kept, merged, *self._rivals.get(kept, ())}

    def representatives(self) -> dict[int, int]:
        return dict(self._representative)


def _order_of_joining(label: LabelledPair) -> tuple[float, LabelledPair]:
    """The clearest label first."""
    return -label.weight, label


def _separate_faces(separated: defaultdict[int, dict[int, LabelledPair]], label: LabelledPair) -> None:
    separated[label.face_a][label.face_b] = label
    separated[label.face_b][label.face_a] = label
