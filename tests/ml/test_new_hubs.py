from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ml import indexes
from ml.distances import EUCLIDEAN
from ml.identification.new_hubs import (
    Level,
    NewHubs,
    StrangerProbes,
    exceed_rates,
    may_exceed_rates,
    surely_exceed_rates,
)
from ml.identification.person_distance import NEAREST_FACE, DecisionRule
from ml.identification.searches import GalleryPeople, SearchOutcomes, search_gallery
from ml.types import Ids, Rows

PEOPLE, PHOTOS, DIM = 300, 3, 64
FPIR, RULE = 0.01, DecisionRule()


def draw_people(count: int, photos: int, seed: int) -> tuple[Rows, Ids]:
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count, DIM)).repeat(photos, axis=0)
    rows = (centres + 0.5 * draw.standard_normal(centres.shape)).astype(np.float32)
    return rows, np.arange(count).repeat(photos).astype(np.int64)


@pytest.fixture(scope="module")
def gallery() -> tuple[NewHubs, Level]:
    """A measured gallery, whose people have the owners 0, 2, 4 and so on."""
    rows, who = draw_people(PEOPLE, PHOTOS, seed=0)
    ids = np.arange(len(rows))
    people = GalleryPeople.from_rows(ids, who, np.zeros(len(rows), np.bool_))
    index = indexes.build(ids, rows, EUCLIDEAN)
    probes = people.sample(people.is_named, 2 * PEOPLE, np.random.default_rng(0))
    stranger = search_gallery(index, people, probes, RULE).stranger
    level = Level(FPIR, float(np.quantile(stranger, FPIR)), 10.0, RULE)
    return NewHubs(StrangerProbes.draw(index, people, 2 * who, 600)), level


def find(gallery: tuple[NewHubs, Level], rows: Rows, owners: Sequence[int], together: bool = True) -> frozenset[int]:
    (hubs, level), ids = gallery, np.array(owners, np.int64)
    return hubs.add(rows, ids, EUCLIDEAN, [level]).find(together=together)


@pytest.mark.parametrize("owner", [2 * PEOPLE, 2 * PEOPLE + 1], ids=["named", "nameless"])
@pytest.mark.parametrize("distance", [0.0, 0.2])
def test_a_face_in_the_middle_of_all_is_a_hub(gallery: tuple[NewHubs, Level], owner: int, distance: float) -> None:
    hubs, level = gallery
    middle = np.full((1, DIM), distance, np.float32)
    if owner % 2:
        level = Level(FPIR, level.person_distance, float(DIM), level.rule)
    assert find((hubs, level), middle, [owner]) == {owner}


@pytest.mark.parametrize("own_faces", [0, PHOTOS], ids=["new", "enrolled"])
def test_a_person_with_the_faces_of_many_is_a_hub(gallery: tuple[NewHubs, Level], own_faces: int) -> None:
    """None of the faces is near to many, but their mean is."""
    mixed = np.concatenate([draw_people(PEOPLE, PHOTOS, seed=0)[0][:own_faces], draw_people(60, 1, seed=7)[0]])
    owner = 0 if own_faces else 2 * PEOPLE
    assert find(gallery, mixed, [owner] * len(mixed)) == {owner}
    assert find(gallery, mixed, [2 * PEOPLE + 2 * number for number in range(len(mixed))]) == frozenset()


def test_people_who_are_named_as_before_are_no_hubs(gallery: tuple[NewHubs, Level]) -> None:
    rows, who = draw_people(PEOPLE, PHOTOS, seed=0)
    hubs, level = gallery
    often = replace(level, person_distance=level.person_distance * 1.2)
    assert find((hubs, often), rows, (2 * who).tolist()) == frozenset()
    assert len(find((hubs, often), rows, (2 * PEOPLE + 2 * who).tolist())) > 10, "the same people under other names"


@pytest.mark.parametrize("seed", range(1, 6))
def test_as_many_ordinary_people_as_a_tenth_are_no_hubs(gallery: tuple[NewHubs, Level], seed: int) -> None:
    rows, who = draw_people(PEOPLE // 10, PHOTOS, seed)
    assert find(gallery, rows, (2 * PEOPLE + 2 * who).tolist()) == frozenset()


def test_further_photos_of_enrolled_people_are_no_hubs(gallery: tuple[NewHubs, Level]) -> None:
    rows, who = draw_people(PEOPLE, PHOTOS, seed=0)
    assert find(gallery, rows + np.float32(0.1), (2 * who).tolist()) == frozenset()


def test_nameless_photos_of_enrolled_people_are_no_hubs(gallery: tuple[NewHubs, Level]) -> None:
    rows, _ = draw_people(PEOPLE, PHOTOS, seed=0)
    assert find(gallery, rows + np.float32(0.1), (2 * np.arange(len(rows)) + 1).tolist()) == frozenset()


def test_many_people_who_are_a_few_strangers_each_are_hubs_together(gallery: tuple[NewHubs, Level]) -> None:
    hubs, _ = gallery
    rows = hubs.probes.rows[:60] + np.float32(0.1)
    owners = [2 * PEOPLE + 2 * number for number in range(len(rows))]
    assert find(gallery, rows, owners) == set(owners)
    assert find(gallery, rows, owners, together=False) == frozenset()
    assert find(gallery, rows[:3], owners[:3]) == frozenset()


def test_faces_that_are_added_one_by_one_are_found_as_at_once(gallery: tuple[NewHubs, Level]) -> None:
    hubs, level = gallery
    rows = np.concatenate([draw_people(20, 1, seed=9)[0], np.zeros((1, DIM), np.float32)])
    owners = 2 * PEOPLE + 2 * np.arange(len(rows), dtype=np.int64)
    for row, owner in zip(rows, owners, strict=True):
        hubs = hubs.add(row[None], owner[None], EUCLIDEAN, [level])
    assert hubs.find(together=True) == find(gallery, rows, owners.tolist()) == {owners[-1]}


def test_without_a_next_person_the_distance_alone_decides() -> None:
    rows, who = draw_people(1, 1, seed=0)
    people = GalleryPeople.from_rows(np.arange(1), who, np.zeros(1, np.bool_))
    probes = StrangerProbes.draw(indexes.build(np.arange(1), rows, EUCLIDEAN), people, 2 * who, 5)
    for rule in (RULE, NEAREST_FACE):
        assert probes.find_next_people(rule)[1].tolist() == [np.inf]
        assert find((NewHubs(probes), Level(FPIR, 9.0, 9.0, rule)), rows, [0]) == frozenset()


def make_outcomes(owners: Ids, named: int) -> SearchOutcomes:
    """Searches for these people, of which the first are named."""
    distances = np.where(np.arange(len(owners)) < named, 0.5, 2.0)
    return SearchOutcomes(np.arange(len(owners)), owners, distances, distances, np.arange(len(owners)))


def test_new_people_exceed_a_rate_as_soon_as_too_many_of_them_are_named() -> None:
    level = Level(FPIR, 1.0, 1.0, RULE, high=0.02)

    def exceed(named: int, newcomers: int, level: Level = level) -> bool:
        outcomes, shares = make_outcomes(np.arange(newcomers), named), np.arange(PEOPLE + newcomers) < newcomers
        return exceed_rates(outcomes, shares.astype(float), PEOPLE + newcomers, [level])

    assert [exceed(named, 29) for named in (0, 3, 4, 10, 29)] == [False, False, True, True, True]
    assert not exceed(29, 29, replace(level, high=None)), "thresholds from pairs state no interval"
    assert [exceed(count, count) for count in (3, 6)] == [False, True]
    assert [may_exceed_rates(count, PEOPLE, [level]) for count in (3, 6)] == [False, True]
    frames = np.concatenate([np.zeros(40, np.int64), np.arange(29)])
    everybody = np.repeat([1.0, 0.0], [29, PEOPLE])
    assert not exceed_rates(make_outcomes(frames, 40), everybody, PEOPLE + 29, [level]), "however many faces one has"


def test_new_faces_of_measured_people_exceed_a_rate_by_their_share_of_these_people_s_faces() -> None:
    level, outcomes = Level(FPIR, 1.0, 1.0, RULE, high=0.02), make_outcomes(np.arange(60).repeat(2), 12)

    def exceed(share: float) -> bool:
        return exceed_rates(outcomes, np.repeat([share, 0.0], [60, PEOPLE]), PEOPLE + 60, [level])

    of_all = 60 / (PEOPLE + 60) * 0.1  # of strangers like all, those who are like new faces and named
    assert [exceed(share) for share in (0.0, 0.9 * 0.01 / of_all, 1.2 * 0.01 / of_all)] == [False, False, True]


def test_all_people_exceed_a_rate_only_if_surely_too_many_of_them_are_named() -> None:
    level = Level(FPIR, 1.0, 1.0, RULE, high=0.02)
    exceed = [surely_exceed_rates(make_outcomes(np.arange(300), named), [level]) for named in (0, 8, 20)]
    assert exceed == [False, False, True]
    doubles = replace(level, high=0.003, named_share=0.03)
    exceed = [surely_exceed_rates(make_outcomes(np.arange(300), named), [doubles]) for named in (6, 12, 30)]
    assert exceed == [False, False, True], "some were named when it was measured, since they have another name too"


def test_a_gallery_where_strangers_find_hardly_anybody_is_not_exceeded_by_nobody() -> None:
    """Where most faces are distractors, fewer strangers than the rate are named."""
    level, nobody = Level(0.05, 1.0, 1.0, RULE, high=0.03), np.empty(0, np.int64)
    assert not exceed_rates(make_outcomes(nobody, 0), np.zeros(PEOPLE), PEOPLE, [level])
    assert not may_exceed_rates(0, PEOPLE, [level])
