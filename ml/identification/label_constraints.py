"""What settled labels mean for a search: which faces are one person, and whom a face cannot be."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self, TypeVar


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


class ExcludedGroup(NamedTuple):
    """Nameless faces that labels say show one person, and the label that says that they are not another person.

    faces: in rising order; one tuple is shared by all people for whom they are ruled out
    """

    faces: tuple[int, ...]
    label: LabelledPair


Entry = TypeVar("Entry", RuledOut, ExcludedGroup)


class Exclusions(NamedTuple):
    """Whom a person is not. labelled: the faces with a label that says so; groups: of the nameless ones among them"""

    labelled: tuple[RuledOut, ...]
    groups: tuple[ExcludedGroup, ...]


class RuledOutFaces(Mapping[int, tuple[RuledOut, ...]]):
    """Owner -> the faces that are not this person, in rising order.

    They are listed when they are asked for: k people who are not one of n joined faces have k x n of them.

    exclusions: owner -> what the faces follow from
    """

    def __init__(self, exclusions: Mapping[int, Exclusions]) -> None:
        self.exclusions = exclusions

    def __getitem__(self, owner: int) -> tuple[RuledOut, ...]:
        labelled, groups = self.exclusions[owner]
        labels = {face: label for faces, label in groups for face in faces}
        for face, label in labelled:
            labels[face] = min(labels.get(face, label), label)
        return tuple(RuledOut(face, label) for face, label in sorted(labels.items()))

    def __contains__(self, owner: object) -> bool:
        return owner in self.exclusions

    def __iter__(self) -> Iterator[int]:
        return iter(self.exclusions)

    def __len__(self) -> int:
        return len(self.exclusions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]


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
    ruled_out: RuledOutFaces = field(default_factory=lambda: RuledOutFaces({}))
    separated: Mapping[int, Mapping[int, LabelledPair]] = field(default_factory=dict)
    contradicted: tuple[LabelledPair, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.separated)

    def person(self, owner: int) -> int:
        """Return the owner that stands for the person."""
        return self.joined.get(owner, owner)

    @cached_property
    def labelled_subjects(self) -> Mapping[int, int]:
        """Face without a name -> the named person whom labels joined it to."""
        return {owner // 2: person // 2 for owner, person in self.joined.items() if owner % 2 and not person % 2}

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
        self._so_far: defaultdict[int, _ExclusionsSoFar] = defaultdict(_ExclusionsSoFar)  # person -> so far
        self._exclusions: dict[int, Exclusions] = {}
        self._nameless: dict[int, tuple[int, ...]] = {}  # person -> their nameless faces, of those that were looked up
        self._separated: defaultdict[int, dict[int, LabelledPair]] = defaultdict(dict)
        self._contradicted: list[LabelledPair] = []

    def add(self, labels: Iterable[LabelledPair]) -> bool:
        """Add labels of pairs that have none yet.

        Return False if all labels have to be added at once to a new builder, since the new ones change what earlier
        ones mean: then this one is of no more use.
        """
        labels = sorted(labels)
        is_first = not self._separated and not self._groups.joined_by
        different = [label for label in labels if not label.same]
        for face in {face for label in different for face in label[:2]}:
            self._separated[face] = dict(self._separated[face])  # one that was built keeps its own
        for label in different:
            if self._groups.are_joined(label) and not self._have_one_name(label):
                return False
            self._separate(label)
        joined: set[int] = set()
        for label in sorted((label for label in labels if label.same), key=_order_of_joining):
            people = self._groups.join(label)
            if people is None:
                if not is_first:
                    return False
                self._contradicted.append(label)
            else:
                joined |= people
        renewed = set(joined)
        for person in {self._groups.find(owner) for owner in joined}:
            renewed |= self._groups.rivals(person)
        for owner in renewed:
            self._so_far.pop(owner, None)
            self._exclusions.pop(owner, None)
        for owner in joined:
            self._nameless.pop(owner, None)
        self._rule_out(different, {self._groups.find(owner) for owner in renewed})
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
            RuledOutFaces(dict(self._exclusions)),
            dict(self._separated),
            tuple(self._contradicted),
        )

    def _have_one_name(self, label: LabelledPair) -> bool:
        return self._owners[label.face_a] == self._owners[label.face_b]

    def _separate(self, label: LabelledPair) -> None:
        self._groups.separate(label)
        _separate_faces(self._separated, label)
        for owner in {self._owners[face] for face in label[:2]}:
            self._different[owner].append(label)

    def _rule_out(self, added: Sequence[LabelledPair], renewed: Set[int]) -> None:
        """Find the faces that people are not: from these labels, or from all of theirs for those who are renewed.

        added: in rising order; renewed: people who were joined, and those who are not one of them
        """
        labels = {person: self._list_labels(person) for person in renewed}
        for label in added:
            for person in {self._groups.find(self._owners[face]) for face in label[:2]} - renewed:
                labels.setdefault(person, []).append(label)
        for person, of_person in labels.items():
            self._rule_out_for(person, of_person)

    def _list_labels(self, person: int) -> list[LabelledPair]:
        """List the labels "not the same" of a person's faces, in rising order."""
        members = self._groups.members(person)
        return sorted({label for owner in members for label in self._different.get(owner, ())})

    def _rule_out_for(self, person: int, labels: Iterable[LabelledPair]) -> None:
        """Add the faces that are not this person, each with the first label that says so.

        A face that is ruled out for a person rules out the nameless faces that labels say are the same as it.
        """
        members, so_far = self._groups.members(person), self._so_far[person]
        for label in labels:
            for face, other in ((label.face_a, label.face_b), (label.face_b, label.face_a)):
                if self._owners[other] not in members or self._owners[face] in members:
                    continue  # it is about the other one's person, or both have one name
                rival = self._groups.find(self._owners[face])
                so_far.add(RuledOut(face, label), rival, self._list_nameless(rival))
        if so_far.labelled:
            self._exclusions[person] = Exclusions(tuple(so_far.labelled), tuple(so_far.groups))

    def _list_nameless(self, person: int) -> tuple[int, ...]:
        if person not in self._nameless:
            owners = self._groups.members(person)
            self._nameless[person] = tuple(sorted(owner // 2 for owner in owners if owner % 2))
        return self._nameless[person]


class _ExclusionsSoFar:
    """Whom a person is not, as far as labels have been added: lists in rising order, and what orders them."""

    def __init__(self) -> None:
        self.labelled: list[RuledOut] = []
        self.groups: list[ExcludedGroup] = []
        self._faces: list[int] = []
        self._rivals: list[int] = []

    def add(self, ruled_out: RuledOut, rival: int, nameless: tuple[int, ...]) -> None:
        """Add a labelled face of another person, and their nameless faces."""
        _add_first(self._faces, self.labelled, ruled_out.face, ruled_out)
        if nameless:
            _add_first(self._rivals, self.groups, rival, ExcludedGroup(nameless, ruled_out.label))


class _Groups:
    """People who are joined step by step, and the pairs of people who cannot be joined.

    Owners that were joined have one number, that of the group. The smaller group is added to the larger one, so that
    n joins take n log n steps in whatever order they come.
    """

    def __init__(self, owners: Mapping[int, int]) -> None:
        self._owners = owners
        self._group: dict[int, int] = {}  # owner -> group, of joined people only
        self._members: dict[int, set[int]] = {}  # group -> owners
        self._representative: dict[int, int] = {}  # group -> the owner that stands for it
        self._rivals: defaultdict[int, set[int]] = defaultdict(set)  # group -> those it cannot be joined with
        self.joined_by: dict[int, LabelledPair] = {}

    def find(self, owner: int) -> int:
        return self._stands_for(self._group.get(owner, owner))

    def members(self, owner: int) -> set[int]:
        """The owners that are the same person as this one, itself included."""
        return self._members.get(self._group.get(owner, owner), {owner})

    def rivals(self, owner: int) -> set[int]:
        """The people with whom the person of this owner cannot be joined."""
        return {self._stands_for(group) for group in self._rivals.get(self._group.get(owner, owner), ())}

    def are_joined(self, label: LabelledPair) -> bool:
        """Tell whether both faces show one person."""
        return self._find_group(label.face_a) == self._find_group(label.face_b)

    def separate(self, label: LabelledPair) -> None:
        """Note that two people cannot be joined. A label about two faces with one name says nothing about people."""
        first, second = self._find_group(label.face_a), self._find_group(label.face_b)
        if first != second:
            self._rivals[first].add(second)
            self._rivals[second].add(first)

    def join(self, label: LabelledPair) -> set[int] | None:
        """Join two people.

        Return the people who are joined: none if they were one person already. Return None if a separation keeps them
        apart.
        """
        owners = self._owners[label.face_a], self._owners[label.face_b]
        if owners[0] == owners[1]:
            return set()
        groups = self._find_group(label.face_a), self._find_group(label.face_b)
        if groups[1] in self._rivals.get(groups[0], ()):
            return None
        for owner in owners:
            self.joined_by[owner] = min(self.joined_by.get(owner, label), label, key=_order_of_joining)
        return set() if groups[0] == groups[1] else self._merge(*groups)

    def _merge(self, first: int, second: int) -> set[int]:
        people = {self._stands_for(first), self._stands_for(second)}
        kept, merged = (first, second) if self._size(first) >= self._size(second) else (second, first)
        added = self._members.pop(merged, {merged})
        members = self._members.setdefault(kept, {kept})
        self._group.update(dict.fromkeys(added, kept) | {kept: kept})
        members |= added
        self._representative.pop(merged, None)
        self._representative[kept] = min(people, key=lambda owner: (owner % 2, owner))
        for rival in self._rivals.pop(merged, ()):
            self._rivals[rival].discard(merged)
            self._rivals[rival].add(kept)
            self._rivals[kept].add(rival)
        return people

    def _find_group(self, face: int) -> int:
        owner = self._owners[face]
        return self._group.get(owner, owner)

    def _stands_for(self, group: int) -> int:
        return self._representative.get(group, group)

    def _size(self, group: int) -> int:
        return len(self._members.get(group, ())) + len(self._rivals.get(group, ()))

    def representatives(self) -> dict[int, int]:
        return {owner: self._stands_for(group) for owner, group in self._group.items()}


def _add_first(keys: list[int], entries: list[Entry], key: int, entry: Entry) -> None:
    """Add an entry in the order of the keys, unless its key has one with an earlier label."""
    position = bisect_left(keys, key)
    if position == len(keys) or keys[position] != key:
        keys.insert(position, key)
        entries.insert(position, entry)
    elif entry.label < entries[position].label:
        entries[position] = entry


def _order_of_joining(label: LabelledPair) -> tuple[float, LabelledPair]:
    """The clearest label first."""
    return -label.weight, label


def _separate_faces(separated: defaultdict[int, dict[int, LabelledPair]], label: LabelledPair) -> None:
    separated[label.face_a][label.face_b] = label
    separated[label.face_b][label.face_a] = label
