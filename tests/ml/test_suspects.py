import numpy as np
import pytest

from ml import indexes
from ml.distances import EUCLIDEAN
from ml.errors import TooFewPairs
from ml.identification.changed_galleries import StrangerCheck, merge_people, split_person, without_faces
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.people_discovery.discovery import find_link_distance
from ml.people_discovery.neighbour_graph import find_links
from ml.people_discovery.suspects import NamedPeople
from tests.ml.test_people_discovery import calibrate, make_people


def suspect(rows: np.ndarray, who: np.ndarray, names: np.ndarray) -> NamedPeople:
    """Look at rows of the people `who`, who are enrolled under `names`."""
    ids = np.arange(len(rows))
    calibration = calibrate(rows, who)
    links = find_links(indexes.build(ids, rows, EUCLIDEAN), ids, ids, find_link_distance(calibration))
    return NamedPeople(rows, names, links, EUCLIDEAN, calibration)


def test_a_person_who_is_enrolled_twice_is_a_suspected_duplicate() -> None:
    rows, who = make_people(40, 8, noise=0.15)
    names = who.copy()
    names[np.flatnonzero(who == 3)[:3]] = 40
    names[np.flatnonzero(who == 9)[:4]] = 41
    duplicates = suspect(rows, who, names).find_duplicates()
    assert {d.people for d in duplicates} == {(3, 40), (9, 41)}
    assert all(0.9 < d.probability <= 1 for d in duplicates)
    assert suspect(rows, who, who).find_duplicates() == []


def test_a_face_under_the_name_of_another_person_is_suspected() -> None:
    rows, who = make_people(40, 8, noise=0.15)
    names = who.copy()
    face = int(np.flatnonzero(who == 5)[2])
    names[face] = 11
    [found] = suspect(rows, who, names).find_wrong_faces()
    assert (found.position, found.person, found.other) == (face, 11, 5)
    assert suspect(rows, who, who).find_wrong_faces() == []


def test_a_person_whose_faces_show_two_people_is_a_suspected_mixture() -> None:
    rows, who = make_people(40, 8, noise=0.15)
    names = np.where(who == 39, 7, who)
    removed = np.flatnonzero(who == 39)[:3]
    kept = np.setdiff1d(np.arange(len(rows)), removed)
    [found] = suspect(rows[kept], who[kept], names[kept]).find_mixtures()
    assert found.person == 7
    assert set(found.groups[0]) == set(np.flatnonzero(who[kept] == 7))
    assert set(found.groups[1]) == set(np.flatnonzero(who[kept] == 39))
    assert suspect(rows, who, who).find_mixtures() == []


def make_check(rows: np.ndarray, names: np.ndarray) -> StrangerCheck:
    ids = np.arange(len(rows))
    people = GalleryPeople.from_rows(ids, names, np.zeros(len(ids), np.bool_))
    return StrangerCheck.run(indexes.build(ids, rows, EUCLIDEAN), people, DecisionRule(), 0.05)


def test_a_change_is_measured_as_if_the_gallery_had_been_so() -> None:
    rows, who = make_people(200, 3, noise=0.3)
    names = who.copy()
    names[np.flatnonzero(who == 8)[:1]] = 200  # enrolled twice: each is named as the other
    check = make_check(rows, names)
    merged = merge_people(check.people, 8, 200)
    after = check.measure_change(merged, np.array([8, 200]))
    every = search_gallery(check.index, merged, check.outcomes.positions, check.rule)
    assert after == pytest.approx((every.stranger <= check.distance).mean())
    assert after < check.share
    split = split_person(check.people, np.flatnonzero(who == 5)[:1])
    assert check.measure_change(split, np.array([5])) > check.share


def test_faces_without_their_name_neither_search_nor_match() -> None:
    rows, who = make_people(200, 3, noise=0.3)
    names = who.copy()
    wrong = np.flatnonzero(who == 8)[:1]
    names[wrong] = 9
    check = make_check(rows, names)
    changed = without_faces(check.people, wrong)
    positions = np.setdiff1d(check.outcomes.positions, wrong)
    every = search_gallery(check.index, changed, positions, check.rule)
    after = check.measure_change(changed, np.array([8, 9]))
    assert after == pytest.approx((every.stranger <= check.distance).mean())
    assert after < check.share


def test_too_few_people_allow_no_check() -> None:
    rows, who = make_people(4, 1)
    with pytest.raises(TooFewPairs, match="people with a name"):
        make_check(rows, who)
