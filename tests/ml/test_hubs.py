import numpy as np
import pytest

from ml import indexes
from ml.distances import EUCLIDEAN
from ml.identification.changed_galleries import StrangerCheck
from ml.identification.hubs import Hub, HubSearch
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople
from tests.ml.test_people_discovery import calibrate, make_people

FPIR = 0.05
PEOPLE, PHOTOS = 240, 4
NOBODY = -1


@pytest.fixture(scope="module")
def faces() -> tuple[np.ndarray, np.ndarray]:
    return make_people(PEOPLE, PHOTOS, noise=0.15)


def find_hubs(rows: np.ndarray, names: np.ndarray, who: np.ndarray, distractors: object = ()) -> list[Hub]:
    """Find hubs among rows of the people `who`, enrolled under `names`; distractors: positions"""
    ids = np.arange(len(rows))
    people = GalleryPeople.from_rows(ids, names, np.isin(ids, distractors))
    check = StrangerCheck.run(indexes.build(ids, rows, EUCLIDEAN), people, DecisionRule(), FPIR)
    return HubSearch.run(check, FPIR, calibrate(rows, who).distance(50)).find()


def add_strangers(who: np.ndarray, strangers: list[int], person: int) -> tuple[np.ndarray, np.ndarray]:
    """Give a person the first face of each stranger, whose second face is nobody's and whose further ones are left out.

    Returns the positions of the faces that stay, and the names of all.
    """
    names, stays = who.copy(), ~np.isin(who, strangers)
    for stranger in strangers:
        first, second, *_ = np.flatnonzero(who == stranger)
        names[first], names[second] = person, NOBODY
        stays[[first, second]] = True
    return np.flatnonzero(stays), names


def test_a_gallery_without_faults_has_hardly_a_hub() -> None:
    counts = []
    for seed in range(5):
        rows, who = make_people(PEOPLE, 2, noise=0.3, seed=seed)
        counts.append(len(find_hubs(rows, who, who)))
    assert sum(counts) <= 2, counts


@pytest.mark.parametrize("as_distractors", [False, True], ids=["nameless", "distractors"])
def test_a_person_with_faces_of_strangers_is_a_hub_until_these_are_removed(
    faces: tuple[np.ndarray, np.ndarray], as_distractors: bool
) -> None:
    rows, who = faces
    strangers = list(range(10, 18))
    stays, names = add_strangers(who, strangers, person=3)
    rows, who, names = rows[stays], who[stays], names[stays]
    nameless = np.flatnonzero(names == NOBODY)
    hubs = {hub.person: hub for hub in find_hubs(rows, names, who, nameless if as_distractors else ())}
    hub = hubs[3]
    assert hub.strangers == (8 if as_distractors else 7), "one without a name may be the person"
    assert hub.strangers_left < hub.strangers
    assert set(hub.faces) <= set(np.flatnonzero((names == 3) & (who != 3)).tolist())
    assert 2 * hub.p_value * PEOPLE < 0.05


def test_nameless_faces_of_a_named_person_make_no_hub(faces: tuple[np.ndarray, np.ndarray]) -> None:
    rows, who = make_people(PEOPLE, 12, noise=0.3)
    names = who.copy()
    names[np.flatnonzero(who == 3)[1:]] = NOBODY
    assert 3 not in {hub.person for hub in find_hubs(rows, names, who)}


def test_a_single_face_between_people_who_look_alike_makes_a_hub() -> None:
    rows, who = make_people(PEOPLE, 3, noise=0.15)
    centre = np.eye(32, dtype=np.float32)[0]
    for person in range(6):
        mean = centre + 0.5 * np.eye(32, dtype=np.float32)[person + 1]
        rows[who == person] = mean + 0.05 * np.random.default_rng(person).normal(size=(3, 32))
    rows = np.concatenate([rows / np.linalg.norm(rows, axis=1, keepdims=True), centre[None]])
    who = np.append(who, PEOPLE)
    hubs = {hub.person: hub for hub in find_hubs(rows, who, who)}
    hub = hubs[PEOPLE]
    assert hub.faces == (len(rows) - 1,)
    assert (hub.strangers, hub.strangers_left) == (6, 0)
    assert hub.p_value == min(hub.p_value for hub in hubs.values())
