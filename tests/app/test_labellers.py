"""Whom the service believes: weights by agreement and a quorum, in the next search and in the list of labellers."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.db.session import reading
from app.db.tables import Collection
from app.galleries.label_consensus import decide_collection, read_collection_votes
from app.learning.plan import Source
from app.learning.plan_resolution import make_plan
from app.learning.training_request import TrainingRequest
from tests.databases import remove_test_data
from tests.rows import GalleryWriter, make_model
from tests.service import Service

MODEL = make_model("m-one", dim=2)
BASE = "/v1/collections/staff"
HONEST = ("ana", "ben", "eva")
PEOPLE, PHOTOS = 12, 2
LIMIT_SECONDS = 60.0


class Staff:
    """Twelve people of two faces each, ten apart, and a stranger at 0.5 beside the first."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.gallery = GalleryWriter(service.resources, "staff").make(MODEL)
        positions = [10.0 * who + photo for who in range(PEOPLE) for photo in range(PHOTOS)]
        subjects = [f"p{who}" for who in range(PEOPLE) for _ in range(PHOTOS)]
        self.subject_of = dict(zip(self.add(positions, subjects), subjects, strict=True))
        [self.stranger] = self.add([0.5], [None])

    def add(self, positions: list[float], subjects: list[Any]) -> list[str]:
        return self.gallery.add({MODEL.id: np.array([[x, 0] for x in positions], np.float32)}, subjects)

    def label(self, by: str, *pairs: tuple[str, str, bool]) -> None:
        labels = [{"face_a": a, "face_b": b, "same": same, "by": by} for a, b, same in pairs]
        answer = self.service.client.post("/v1/labels", json={"labels": labels})
        assert answer.json()["accepted"] == len(labels)

    def label_all(self, random: str = "mallory") -> None:
        """Three honest labellers and one who answers at random judge every pair of the people."""
        pairs = list(itertools.combinations(self.subject_of, 2))
        answers = np.random.default_rng(0).random(len(pairs)) < 0.5
        for by in HONEST:
            self.label(by, *((a, b, self.subject_of[a] == self.subject_of[b]) for a, b in pairs))
        self.label(random, *((a, b, bool(same)) for (a, b), same in zip(pairs, answers, strict=True)))

    def change(self, **fields: Any) -> dict[str, Any]:
        answer = self.service.client.patch(f"{BASE}/deployments/identity", json=fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def find_subjects(self) -> list[str]:
        """Search with the stranger's face, by the labels as they are now."""
        with reading(self.service.resources.database) as session:
            change = session.get_one(Collection, "staff").change
        limit = time.monotonic() + LIMIT_SECONDS
        while (answer := self.search())["index_generation"].partition(".")[2] != str(change):
            assert time.monotonic() < limit
            time.sleep(0.02)
        return [match["subject"]["id"] for match in answer["faces"][0]["matches"]]

    def search(self) -> dict[str, Any]:
        answer = self.service.client.post(f"{BASE}/faces/{self.stranger}/search", params={"limit": 3})
        assert answer.status_code in (200, 503), answer.text
        return {"index_generation": ""} | answer.json()

    def list_labellers(self) -> dict[str, dict[str, Any]]:
        answer = self.service.client.get(f"{BASE}/labellers").json()
        return {labeller["labeller"]: labeller for labeller in answer["labellers"]}


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def staff(service: Service) -> Staff:
    return Staff(service)


def test_the_list_shows_who_answers_at_random(staff: Staff) -> None:
    staff.label_all()
    staff.label("new", (staff.stranger, next(iter(staff.subject_of)), False))
    listed = staff.list_labellers()
    assert set(listed) == {*HONEST, "mallory", "new"}
    mallory, ana, new = listed["mallory"], listed["ana"], listed["new"]
    assert (mallory["labels"], mallory["compared"], mallory["weight"]) == (276, 276, 0)
    assert mallory["agreement"]["low"] < 0.5 < mallory["agreement"]["high"]
    assert ana["weight"] > 1
    assert ana["agreement"]["high"] > 0.95
    assert (new["judged_by_others"], new["agreement"], new["weight"]) == (0, None, 1)
    assert next(iter(listed)) == "mallory", "the least weight comes first"
    assert staff.service.client.get(f"{BASE}/labellers", headers=staff.service.key("operator")).status_code == 403
    assert staff.service.client.get("/v1/collections/nowhere/labellers").status_code == 404


def test_the_list_has_pages(staff: Staff) -> None:
    staff.label_all()
    whole = staff.service.client.get(f"{BASE}/labellers").json()
    assert whole["next_token"] is None
    listed, token = list[dict[str, Any]](), None
    for count in (3, 1):
        params = {"limit": 3} | ({"next_token": token} if token else {})
        page = staff.service.client.get(f"{BASE}/labellers", params=params).json()
        assert len(page["labellers"]) == count
        listed, token = listed + page["labellers"], page["next_token"]
    assert token is None
    assert listed == whole["labellers"]
    refused = staff.service.client.get(f"{BASE}/labellers", params={"next_token": "x"})
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidPaginationToken")


def test_labels_of_an_unreliable_labeller_lose_their_effect_in_the_next_search(staff: Staff) -> None:
    staff.label_all()
    first, second, *_ = staff.subject_of
    staff.label("mallory", (staff.stranger, first, False), (staff.stranger, second, False))
    assert staff.find_subjects()[0] == "p1"
    assert staff.change(label_weights="agreement")["label_weights"] == "agreement"
    assert staff.find_subjects()[0] == "p0", "her word alone decides nothing"
    staff.label("ana", (staff.stranger, first, False))
    assert staff.find_subjects()[0] == "p1", "ana's word does"
    assert staff.change(label_weights="equal")["label_quorum"] == 1


def test_a_quorum_holds_in_the_next_search_and_in_trainings(staff: Staff) -> None:
    first, *_ = staff.subject_of
    staff.label("ana", (staff.stranger, first, False))
    assert staff.find_subjects()[0] == "p1"
    assert staff.change(label_quorum=2)["label_quorum"] == 2
    assert staff.find_subjects()[0] == "p0"
    staff.label("ben", (staff.stranger, first, False))
    assert staff.find_subjects()[0] == "p1"
    with reading(staff.service.resources.database) as session:
        settings = staff.service.resources.settings
        stated = Source(origin="labels", quorum=1)
        requests = [TrainingRequest(collection="staff", descriptor="lbp", sources=s) for s in ([], [stated])]
        plans = [make_plan(session, settings, request) for request in requests]
    assert [source.quorum for source in plans[0].sources if source.origin == "labels"] == [2]
    assert [source.quorum for source in plans[1].sources] == [1], "what a request states holds"


def test_votes_without_weight_do_not_count_towards_the_quorum(staff: Staff) -> None:
    staff.label_all()
    first, *_ = staff.subject_of
    staff.change(label_weights="agreement", label_quorum=2)
    staff.label("mallory", (staff.stranger, first, False))
    staff.label("ana", (staff.stranger, first, False))
    assert staff.find_subjects()[0] == "p0"
    staff.label("ben", (staff.stranger, first, False))
    assert staff.find_subjects()[0] == "p1"


def test_taking_a_labeller_back_reads_only_the_pairs_that_they_have_judged(staff: Staff) -> None:
    first, second, third, *_ = staff.subject_of
    staff.label("mallory", (staff.stranger, first, False), (second, third, True))
    staff.label("ana", (second, third, False), (first, third, False), (first, second, False))
    with reading(staff.service.resources.database) as session:
        votes = read_collection_votes(session, "staff", "identity", labeller="mallory")
        assert len(read_collection_votes(session, "staff", "identity")) == 4
    assert sorted(sorted(of_pair) for of_pair in votes.values()) == [["ana", "mallory"], ["mallory"]]


def test_taking_a_labeller_back_lists_what_it_changes_and_acts_in_the_next_search(staff: Staff) -> None:
    first, second, third, *_ = staff.subject_of
    staff.label("mallory", (staff.stranger, first, False), (second, third, True))
    staff.label("ana", (second, third, False))
    staff.label("ben", (staff.stranger, third, False))
    assert staff.find_subjects()[0] != "p0"
    answer = staff.service.client.delete("/v1/labels", params={"by": "mallory"}).json()
    assert (answer["withdrawn"], answer["changed"]) == (2, 2)
    changed = {frozenset((p["face_a"], p["face_b"])): (p["before"], p["after"]) for p in answer["pairs"]}
    assert changed == {frozenset((staff.stranger, first)): (False, None), frozenset((second, third)): (None, False)}
    assert staff.find_subjects()[0] == "p0"
    assert set(staff.list_labellers()) == {"ana", "ben"}
    with reading(staff.service.resources.database) as session:
        assert len(decide_collection(session, "staff", "identity")) == 2


def test_wrong_rules_are_refused(staff: Staff) -> None:
    for wrong in ({"label_weights": "loudness"}, {"label_quorum": 0}, {"label_quorum": "two"}, {}):
        answer = staff.service.client.patch(f"{BASE}/deployments/identity", json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter"), wrong
