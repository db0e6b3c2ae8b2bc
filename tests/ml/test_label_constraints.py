"""The constraints that settled labels put on searches."""

import time
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from ml.identification.label_constraints import ConstraintBuilder, LabelConstraints, LabelledPair

ANN, BEN = 2 * 100, 2 * 101
"""The owners of two people with names; a face without a name owns 2 * face + 1."""


def make(labels: Sequence[tuple[int, int, bool]], named: dict[int, int] | None = None) -> LabelConstraints:
    """named: face -> owner; the other faces have no name"""
    pairs = [LabelledPair(a, b, same) for a, b, same in labels]
    faces = {face for pair in pairs for face in pair[:2]}
    return LabelConstraints.from_labels(pairs, {face: (named or {}).get(face, 2 * face + 1) for face in faces})


def test_a_face_is_ruled_out_for_the_person_of_the_other_one() -> None:
    constraints = make([(1, 2, False)], {1: ANN})
    assert [out.face for out in constraints.ruled_out[ANN]] == [2]
    assert [out.face for out in constraints.ruled_out[2 * 2 + 1]] == [1]
    assert constraints.separated[1].keys() == {2}
    assert constraints.separated[2].keys() == {1}


def test_faces_with_one_name_are_separated_and_their_person_is_not_ruled_out() -> None:
    constraints = make([(1, 2, False)], {1: ANN, 2: ANN})
    assert constraints.ruled_out == {}
    assert constraints.separated[1].keys() == {2}


def test_a_nameless_face_joins_the_person_with_a_name() -> None:
    constraints = make([(1, 2, True), (2, 3, True)], {1: ANN})
    assert {constraints.person(owner) for owner in (ANN, 2 * 2 + 1, 2 * 3 + 1)} == {ANN}
    assert constraints.person(BEN) == BEN
    assert constraints.joined_by[2 * 3 + 1] == LabelledPair(2, 3, True)


def test_what_is_the_same_as_a_face_that_is_ruled_out_is_ruled_out_too() -> None:
    constraints = make([(1, 2, False), (2, 3, True)], {1: ANN})
    assert {out.face for out in constraints.ruled_out[ANN]} == {2, 3}
    assert {out.label for out in constraints.ruled_out[ANN]} == {LabelledPair(1, 2, False)}


def test_a_person_who_was_joined_to_another_rules_out_for_both() -> None:
    constraints = make([(1, 2, False), (2, 3, True)], {1: ANN, 2: BEN})
    assert constraints.person(2 * 3 + 1) == BEN
    assert {out.face for out in constraints.ruled_out[BEN]} == {1}


@pytest.mark.parametrize("order", [*permutations([(1, 2, True), (2, 3, True), (1, 3, False)])])
def test_labels_do_not_join_faces_that_other_labels_call_different(order: Sequence[tuple[int, int, bool]]) -> None:
    constraints = make(order)
    assert constraints.person(3) != constraints.person(7)
    assert constraints.contradicted == (LabelledPair(2, 3, True),)
    assert constraints.separated[1].keys() == {3}


def test_the_clearer_of_two_labels_holds() -> None:
    labels = [LabelledPair(1, 2, True, 0.5), LabelledPair(2, 3, True, 1.0), LabelledPair(1, 3, False, 1.0)]
    constraints = LabelConstraints.from_labels(labels, {1: 3, 2: 5, 3: 7})
    assert constraints.contradicted == (labels[0],)
    assert constraints.person(5) == constraints.person(7) != constraints.person(3)


def test_two_names_can_be_one_person() -> None:
    constraints = make([(1, 2, True)], {1: ANN, 2: BEN})
    assert constraints.person(BEN) == constraints.person(ANN) == ANN


def test_labels_about_something_else_only_separate_pairs() -> None:
    constraints = LabelConstraints.from_separations([LabelledPair(1, 2, False), LabelledPair(2, 3, True)])
    assert (constraints.joined, constraints.ruled_out) == ({}, {})
    assert constraints.separated.keys() == {1, 2}


def test_no_labels_are_no_constraints() -> None:
    assert not LabelConstraints()
    assert not make([])
    assert make([(1, 2, False)])
    assert make([(1, 2, True)])


def test_random_labels_never_join_separated_people() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        pairs = {tuple(sorted(pair)) for pair in draw.integers(0, 12, (16, 2)).tolist() if pair[0] != pair[1]}
        labels = [(a, b, bool(draw.random() < 0.6)) for a, b in sorted(pairs)]
        named = {face: [ANN, BEN][face % 2] for face in range(4)}
        constraints = make(labels, named)
        owner = {face: named.get(face, 2 * face + 1) for face in range(12)}
        for a, b, same in labels:
            people = constraints.person(owner[a]), constraints.person(owner[b])
            is_contradicted = LabelledPair(a, b, same) in constraints.contradicted
            if same:
                assert (people[0] == people[1]) != is_contradicted
            elif owner[a] != owner[b]:
                assert people[0] != people[1]
                assert b in {out.face for out in constraints.ruled_out[people[0]]}


def test_a_person_is_none_of_the_faces_that_are_joined_to_a_face_that_is_ruled_out() -> None:
    """As computed label by label, which takes as many steps as people times the faces that are ruled out for them."""
    draw = np.random.default_rng(2)
    for _ in range(200):
        pairs = {tuple(sorted(pair)) for pair in draw.integers(0, 14, (18, 2)).tolist() if pair[0] != pair[1]}
        labels = [LabelledPair(a, b, bool(draw.random() < 0.6)) for a, b in sorted(pairs)]
        owner = {face: [ANN, BEN][face] if face < 2 else 2 * face + 1 for face in range(14)}
        constraints = LabelConstraints.from_labels(labels, owner)
        expected: dict[int, dict[int, LabelledPair]] = {}
        for label in labels:
            for face, other in (label[:2], label[1::-1]):
                person, excluded = constraints.person(owner[other]), constraints.person(owner[face])
                nameless = {one for one in range(2, 14) if constraints.person(owner[one]) == excluded}
                for one in {face, *nameless} if not label.same else ():
                    of_person = expected.setdefault(person, {})
                    of_person[one] = min(of_person.get(one, label), label)
        listed = {person: {out.face: out.label for out in outs} for person, outs in constraints.ruled_out.items()}
        assert listed == expected


SHAPES = {
    "chain": [(face, face + 1, True) for face in range(20_000)],
    "chain to a lower face": [(face, face + 1, True) for face in reversed(range(20_000))],
    "star": [(0, face, False) for face in range(1, 20_000)],
    "joined faces that are nobody of many others": [
        *((face, face + 1, True) for face in range(10_000)),
        *((face, face + 20_000, False) for face in range(10_000)),
    ],
    "joined faces of which each is not somebody": [
        *((0, face, False) for face in range(10_001, 20_000)),
        *((face, face + 1, True) for face in range(10_000)),
    ],
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_cost_of_labels_grows_as_their_number(shape: str) -> None:
    """Each shape took minutes: as many steps as the square of the labels, in which no index was kept current."""
    labels = [LabelledPair(a, b, same) for a, b, same in SHAPES[shape]]
    owners = {face: 2 * face + 1 for label in labels for face in label[:2]}
    started = time.process_time()
    constraints = LabelConstraints.from_labels(labels, owners)
    assert constraints
    assert time.process_time() - started < 5


def measure_star(count: int) -> float:
    """Add labels "not the same" of one face, a hundred at a time, and return the processor time."""
    owners: dict[int, int] = {}
    builder, started = ConstraintBuilder(owners), time.process_time()
    for start in range(1, count, 100):
        part = [LabelledPair(0, face, False) for face in range(start, start + 100)]
        owners |= {face: 2 * face + 1 for label in part for face in label[:2]}
        assert builder.add(part)
        assert builder.build()
    return time.process_time() - started


def test_the_cost_of_labels_of_one_face_that_are_added_in_parts_grows_as_their_number() -> None:
    """All labels of the face were gone through at each addition: twice as many took four to five times as long."""
    ratios = [measure_star(8_000) / measure_star(4_000) for _ in range(3)]
    assert min(ratios) < 3, ratios


def test_labels_that_are_added_in_parts_mean_what_they_mean_at_once() -> None:
    """Also what was built before an addition stays as it was. Some additions ask to begin anew: not most of them."""
    draw = np.random.default_rng(1)
    begun_anew = 0
    for trial in range(300):
        share_same, faces = draw.choice([0.2, 0.5, 0.8]), int(draw.integers(6, 24))
        pairs = {tuple(sorted(pair)) for pair in draw.integers(0, faces, (20, 2)).tolist() if pair[0] != pair[1]}
        labels = [LabelledPair(a, b, bool(draw.random() < share_same), draw.choice([0.5, 1.0])) for a, b in pairs]
        owner_of = {face: [ANN, BEN, 2 * face + 1, 2 * face + 1][face % 4] for face in range(faces)}
        owners: dict[int, int] = {}
        builder, added, built = ConstraintBuilder(owners), 0, []
        while added < len(labels):
            part = labels[added : added + int(draw.integers(1, 4))]
            added += len(part)
            owners |= {face: owner_of[face] for label in part for face in label[:2]}
            if not builder.add(part):
                begun_anew += 1
                builder = ConstraintBuilder(owners)
                assert builder.add(labels[:added])
            built.append((builder.build(), LabelConstraints.from_labels(labels[:added], owner_of)))
        for now, at_once in built:
            assert vars(now) == vars(at_once), (trial, labels)
    assert 100 < begun_anew < 900
