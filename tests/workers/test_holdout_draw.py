"""A fixed share of the people is held out of a training, whatever labels join to them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ml.embedder_training.examples import TaskExamples
from workers.training.split import choose_further_holdouts, choose_held_out_faces
from workers.training.training_data import FaceRecord, TrainingData, number_people

PEOPLE, PHOTOS = 400, 10


def make_face(pk: int, subject: str | None) -> FaceRecord:
    return FaceRecord(pk, "c", f"i{pk:05}", 0, None if subject is None else pk, subject, {})


def join(pairs: list[tuple[int, int]], count: int) -> TaskExamples:
    known, member, same = np.full(count, np.nan), np.ones(count, np.bool_), np.ones(len(pairs), np.bool_)
    ends, weights = np.array(pairs, np.int64).reshape(-1, 2), np.ones(len(pairs), np.float32)
    return TaskExamples("identity", member, known, known, 0.0, "labels", ends, same, weights, 0, None)


def test_labels_that_join_photos_to_people_hold_nobody_else_out() -> None:
    count = PEOPLE * (1 + PHOTOS)
    faces = [make_face(i, f"p{i}" if i < PEOPLE else None) for i in range(count)]
    pairs = [(i % PEOPLE, i) for i in range(PEOPLE, count)]
    alone = number_people(faces[:PEOPLE], [])[1]
    people, draws = number_people(faces, [join(pairs, count)])
    assert len(np.unique(people)) == PEOPLE
    assert np.array_equal(draws, np.tile(alone, 1 + PHOTOS))


def test_of_people_without_a_name_a_fifth_is_held_out() -> None:
    count = PEOPLE * PHOTOS
    faces = [make_face(i, None) for i in range(count)]
    _, draws = number_people(faces, [join([(i % PEOPLE, i) for i in range(PEOPLE, count)], count)])
    assert 0.15 < (draws < 0.2).mean() < 0.25


@pytest.mark.parametrize("same", ["id", "photo", "nothing"])
def test_who_is_in_several_collections_is_held_out_of_all_or_of_none(same: str) -> None:
    """By one id, by one photo, or as somebody whom nothing connects."""
    faces = []
    for number, (collection, person) in enumerate((c, p) for c in ("a", "b") for p in range(PEOPLE)):
        photo = person if same == "photo" else number
        name = f"p{person}" if same == "id" else f"{collection}{person}"
        faces.append(FaceRecord(number, collection, f"i{photo:05}", 0, number, name, {}))
    people, draws = number_people(faces, [])
    assert len(np.unique(people)) == (2 * PEOPLE if same == "nothing" else PEOPLE)
    assert np.array_equal(draws[:PEOPLE], draws[PEOPLE:]) == (same != "nothing")
    assert np.array_equal(draws[:PEOPLE], number_people(faces[:PEOPLE], [])[1]), "as in a training of one collection"


@pytest.mark.parametrize(("count", "held_out"), [(319, 64), (320, 160), (500, 160), (2000, 400)])
def test_as_many_people_are_held_out_as_a_threshold_needs_if_half_are_as_many(count: int, held_out: int) -> None:
    faces = [make_face(i, f"p{i // 2}") for i in range(2 * count)]
    people, _ = number_people(faces, [])
    draws = np.random.default_rng(0).permutation(count)[people] / count
    identity = replace(join([], 2 * count), values=people * 1.0, truth=people * 1.0, derived="subjects")
    data = TrainingData(faces, [], (identity,), people, draws, {})
    is_held_out = choose_held_out_faces(data, 0.2)
    assert len(np.unique(people[is_held_out])) == held_out
    assert not choose_held_out_faces(data, 0.0).any()


def read_people(count: int, photos: int = 2, named: int | None = None, labelled: Sequence[int] = ()) -> TrainingData:
    """Make the data of a training of people with so many photos; two photos of each of the labelled are a pair."""
    faces = [
        FaceRecord(i, "c", f"i{i:05}", 0, i // photos if i // photos < (named or count) else None, None, {})
        for i in range(count * photos)
    ]
    people = np.arange(count * photos) // photos
    draws = np.random.default_rng(0).permutation(count)[people] / count
    known = np.full(len(people), np.nan) if len(labelled) else people * 1.0
    pairs = [(photos * person, photos * person + 1) for person in labelled]
    origin = "labels" if len(labelled) else "subjects"
    identity = replace(join(pairs, len(people)), values=known, truth=known, derived=origin)
    return TrainingData(faces, [], (identity,), people, draws, {})


@pytest.mark.parametrize(
    ("count", "share", "fits"), [(150, 0.2, 4), (200, 0.2, 3), (319, 0.2, 2), (250, 0.05, 3), (200, 0.5, 1)]
)
def test_of_few_people_other_fits_hold_others_out(count: int, share: float, fits: int) -> None:
    data = read_people(count)
    held_out = choose_held_out_faces(data, share)
    further = choose_further_holdouts(data, held_out, {"c": 160})
    assert len(further) == fits
    assert max(np.sum([held_out, *further], axis=0)) == 1, "nobody is held out twice"
    people = [len(np.unique(data.people[chosen])) for chosen in further]
    assert sum(people) + len(np.unique(data.people[held_out])) >= min(count, 160)
    assert max(people) <= max(0.25, share) * count


@pytest.mark.parametrize(
    ("count", "named", "share"), [(149, 149, 0.2), (320, 320, 0.2), (300, 149, 0.2), (200, 200, 0)]
)
def test_no_fit_holds_others_out_where_enough_are_or_too_few_have_names(count: int, named: int, share: float) -> None:
    data = read_people(count, named=named)
    assert not choose_further_holdouts(data, choose_held_out_faces(data, share), {"c": 160})


def test_those_whom_labels_compare_are_dealt_out_evenly() -> None:
    labelled = range(0, 200, 5)
    data = read_people(200, labelled=labelled)
    held_out = choose_held_out_faces(data, 0.2)
    for fit in (held_out, *choose_further_holdouts(data, held_out, {"c": 160})):
        left = set(labelled) - set(data.people[fit].tolist())
        assert len(left) >= len(labelled) / 2, "each fit has pairs to learn from"


def test_people_of_two_collections_are_strangers_to_some_fit_and_to_one_at_most() -> None:
    data = read_people(400)
    faces = [replace(face, collection_id="c" if face.subject_pk in range(200) else "d") for face in data.faces]
    data = replace(data, faces=faces)
    held_out = choose_held_out_faces(data, 0.2)
    further = choose_further_holdouts(data, held_out, {"c": 150, "d": 150})
    assert max(np.sum([held_out, *further], axis=0)) == 1, "nobody is held out twice"
    strangers = np.any([held_out, *further], axis=0)
    for name in ("c", "d"):
        assert len(np.unique(data.people[strangers & data.lies_in(name)])) >= 150
    assert len(further) <= 4, "both are held out of the same fits"
