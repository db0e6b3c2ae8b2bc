"""A share of the searches is answered by the challenger too, and the answers are compared."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.db.session import close_database, open_database, reading, writing
from app.db.tables import ShadowTotals
from app.resources import Resources
from app.search.shadow.outcome import SearchOutcome, compare_outcomes
from app.serving.shadow.comparison_queue import MAX_QUEUED_SEARCHES, ComparisonQueue, QueuedSearch
from app.serving.shadow.totals import ModelPair, add_to_totals
from app.shadow_comparisons.schemas import ComparedMeanOut, ComparedShareOut
from ml import images, synthetic_faces
from tests.rows import GalleryWriter, make_model
from tests.service import Service

FIRST, SECOND, THIRD = (make_model(f"m-{number}", dim=2, seed=number) for number in range(3))
BASE = "/v1/collections/staff"
SHADOW = f"{BASE}/deployments/identity/shadow"
PEOPLE = 12
PAIR = ModelPair("staff", "identity", FIRST.id, SECOND.id)
LIMIT_SECONDS = 60.0
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Staff:
    """Twelve people of two faces each, ten apart. The challenger puts one face of p0 beside the faces of p5."""

    def __init__(self, service: Service) -> None:
        self.service, self.client = service, service.client
        self.gallery = GalleryWriter(service.resources, "staff").make(FIRST, challenger=SECOND)
        positions = [10.0 * who + photo for who in range(PEOPLE) for photo in range(2)]
        moved = [positions[0], 50.5, *positions[2:]]
        rows, moved_rows = (np.array([[x, 0] for x in xs], np.float32) for xs in (positions, moved))
        subjects = [f"p{who:02}" for who in range(PEOPLE) for _ in range(2)]
        self.faces = self.gallery.add({FIRST.id: rows, SECOND.id: moved_rows}, subjects)
        draw = np.random.default_rng(0)
        genuine, impostor = 1 + 0.1 * draw.standard_normal(200), 50 + 10 * draw.standard_normal(2000)
        for model in (FIRST.id, SECOND.id):
            self.gallery.calibrate(model, np.square(genuine).astype(np.float32), impostor.astype(np.float32))
        self.wait(self.is_served)

    def is_served(self) -> bool:
        """Whether searches see all people and the calibration."""
        answer = self.search(0, limit=PEOPLE)
        return len(answer["faces"][0]["matches"]) == PEOPLE and answer["calibrated"]

    def set_share(self, share: float) -> None:
        answer = self.client.patch(f"{BASE}/deployments/identity", json={"shadow_share": share})
        assert (answer.status_code, answer.json()["shadow_share"]) == (200, share)

    def search(self, face: int, **params: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {}

        def is_answered() -> bool:
            nonlocal answer
            response = self.client.post(f"{BASE}/faces/{self.faces[face]}/search", params=params)
            answer = response.json()
            assert response.status_code in (200, 503), response.text
            return response.status_code == 200

        self.wait(is_answered)
        return answer

    def start(self) -> int:
        """Have every search compared; return how many were compared by then, once the challenger is loaded."""
        self.search(0, model=SECOND.id)
        self.set_share(1)

        def is_comparing() -> bool:
            self.search(22)
            return bool(self.read()["compared"])

        self.wait(is_comparing)
        return self.settle()

    def settle(self) -> int:
        """Return how many were compared once the number stays the same."""
        count, limit = -1, time.monotonic() + LIMIT_SECONDS
        while count != (count := self.read()["compared"]):
            assert time.monotonic() < limit
            time.sleep(1.5)
        return count

    def read(self) -> dict[str, Any]:
        answer = self.client.get(SHADOW)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < limit
            time.sleep(0.05)


def count_totals(service: Service) -> int:
    with reading(service.resources.database) as session:
        return len(session.scalars(select(ShadowTotals)).all())


def gain(before: dict[str, Any], after: dict[str, Any], name: str) -> tuple[int, int]:
    """How much the count and the denominator of a share have grown."""
    return after[name]["count"] - before[name]["count"], after[name]["of"] - before[name]["of"]


def test_every_search_is_compared_at_a_share_of_one(service: Service) -> None:
    staff = Staff(service)
    expected = staff.search(0)
    assert expected["faces"][0]["matches"][0]["subject"]["id"] == "p00"
    start = staff.start()
    before = staff.read()
    answers = [staff.search(face) for face in (0, 4, 8, 8)]
    assert {answer["model"] for answer in answers} == {FIRST.id}
    assert answers[0]["faces"] == expected["faces"], "the answer is the champion's"
    staff.wait(lambda: staff.read()["compared"] >= start + 4)
    after = staff.read()
    assert (after["status"], after["champion"], after["challenger"]) == ("running", FIRST.id, SECOND.id)
    assert after["compared"] == start + 4
    assert after["since"] <= after["updated_at"] <= time.time()
    assert gain(before, after, "same_first") == (3, 4), "p00 is not the first for the challenger"
    assert gain(before, after, "same_decision")[1] == 4, "both are calibrated"
    assert gain(before, after, "named_by_champion_only")[0] == 1
    assert after["overlap"]["of"] == start + 4
    assert 0.5 < after["overlap"]["value"] <= 1
    assert after["probability_difference"]["value"] < 0
    assert (after["dropped"], after["skipped"]["failed"]) == (0, 0)


@on_sqlite
def test_a_comparison_begins_after_the_answer_was_sent(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    staff = Staff(service)
    staff.start()
    begun, released = threading.Event(), threading.Event()

    def wait_for_release(*_: object) -> None:
        begun.set()
        released.wait(LIMIT_SECONDS)

    monkeypatch.setattr("app.search.service.queue_comparison", wait_for_release)
    assert staff.search(0)["model"] == FIRST.id
    assert not released.is_set(), "the answer came although the comparison waits"
    assert begun.wait(LIMIT_SECONDS)
    released.set()


def test_processes_that_add_at_once_lose_nothing(resources: Resources) -> None:
    GalleryWriter(resources, "staff").make(FIRST, challenger=SECOND)
    errors: list[BaseException] = []

    def add(times: int) -> None:
        database = open_database(resources.settings.database, resources.settings.home)
        try:
            for _ in range(times):
                with writing(database) as session:
                    assert add_to_totals(session, PAIR, {"compared": 1, "overlap": 0.5})
        except BaseException as error:
            errors.append(error)
        finally:
            close_database(database)

    threads = [threading.Thread(target=add, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with reading(resources.database) as session:
        totals = session.get_one(ShadowTotals, tuple(PAIR))
        assert (totals.compared, totals.overlap) == (40, 20.0)


def test_what_is_not_the_champions_own_answer_is_not_compared(service: Service) -> None:
    staff = Staff(service)
    start = staff.start()
    staff.search(0, model="challenger")
    vector = {"vector": [0.0, 0.0]}
    assert service.client.post(f"{BASE}/search:by-embedding", json=vector).status_code == 200
    staff.wait(lambda: staff.read()["skipped"]["vectors"] == 1)
    assert staff.settle() == start


def test_photos_are_described_again_for_the_challenger(service: Service) -> None:
    staff = Staff(service)
    start = staff.start()
    image = synthetic_faces.draw(synthetic_faces.person(3), 0, strength=0.3)
    answer = service.client.post(f"{BASE}/search", files={"file": ("photo.png", images.encode_png(image))})
    assert (answer.status_code, answer.json()["model"]) == (200, FIRST.id)
    staff.wait(lambda: staff.read()["compared"] == start + 1)


def test_the_challengers_index_is_loaded_while_there_is_a_share(service: Service) -> None:
    staff = Staff(service)
    staff.search(0)

    def is_loaded(model: str) -> bool:
        return f'model="{model}"' in service.client.get("/metrics").text

    assert is_loaded(FIRST.id)
    assert not is_loaded(SECOND.id)
    staff.set_share(0.001)
    staff.wait(lambda: is_loaded(SECOND.id))


def test_nothing_is_compared_without_a_challenger(service: Service) -> None:
    staff = Staff(service)
    staff.gallery.point(challenger=None)
    assert staff.read()["status"] == "off"
    staff.set_share(1)
    for _ in range(5):
        staff.search(0)
    time.sleep(1.5)
    shown = staff.read()
    assert (shown["status"], shown["challenger"], shown["compared"], shown["since"]) == ("no challenger", None, 0, None)
    assert shown["same_first"] == {"count": 0, "of": 0, "value": None, "low": None, "high": None}
    assert count_totals(service) == 0
    assert service.client.get(f"{BASE}/deployments/age/shadow").status_code == 404
    for wrong in (-0.1, 1.1, "all", True):
        answer = service.client.patch(f"{BASE}/deployments/identity", json={"shadow_share": wrong})
        assert answer.status_code == 422


def test_nothing_is_compared_at_a_share_of_zero(service: Service) -> None:
    staff = Staff(service)
    staff.start()
    staff.set_share(0)
    start = staff.settle()
    for _ in range(5):
        staff.search(0)
    assert staff.settle() == start
    assert staff.read()["status"] == "off"


def test_totals_end_when_a_pointer_moves_and_with_their_collection(service: Service) -> None:
    staff = Staff(service)
    staff.start()
    assert staff.client.put(f"{BASE}/deployments/identity/challenger", json={"model": None}).status_code == 200
    assert (staff.read()["status"], staff.read()["compared"]) == ("no challenger", 0)
    assert count_totals(service) == 0
    staff.gallery.point(challenger=SECOND.id)
    assert staff.read()["compared"] == 0, "the same pair begins anew"
    staff.start()
    assert service.client.delete(BASE).status_code < 300
    assert count_totals(service) == 0


def test_labels_of_query_faces_are_judged_by_both_models(service: Service) -> None:
    staff = Staff(service)
    label = {"face_a": staff.faces[0], "face_b": staff.faces[1], "same": True, "by": "ana"}
    assert service.client.post("/v1/labels", json={"labels": [label]}).json()["accepted"] == 1
    service.wait_for_indexes()
    staff.start()
    before = staff.read()
    staff.search(0)
    staff.wait(lambda: staff.read()["broken_labels"]["of"] > before["broken_labels"]["of"])
    after = staff.read()
    assert gain(before, after, "broken_labels") == (1, 1)
    assert gain(before, after, "mended_labels") == (0, 1)


def test_a_full_queue_drops_searches_and_counts_them(resources: Resources) -> None:
    GalleryWriter(resources, "staff").make(FIRST, challenger=SECOND)
    queue, started, proceed = ComparisonQueue(resources.database, lambda: 0), threading.Event(), threading.Event()
    queue.start()

    def wait_for_signal() -> dict[str, float]:
        started.set()
        proceed.wait(LIMIT_SECONDS)
        return {"compared": 1}

    queue.submit(QueuedSearch(PAIR, 1, wait_for_signal))
    assert started.wait(LIMIT_SECONDS)
    for _ in range(MAX_QUEUED_SEARCHES + 3):
        queue.submit(QueuedSearch(PAIR, 2, lambda: {"compared": 2}))
    proceed.set()
    limit = time.monotonic() + LIMIT_SECONDS
    while read_totals(resources) != (1 + 2 * MAX_QUEUED_SEARCHES, 6):
        assert time.monotonic() < limit, read_totals(resources)
        time.sleep(0.05)
    queue.stop()


def read_totals(resources: Resources) -> tuple[int, int] | None:
    with reading(resources.database) as session:
        totals = session.get(ShadowTotals, tuple(PAIR))
        return totals and (totals.compared, totals.dropped)


@on_sqlite
def test_stopping_saves_what_was_counted(resources: Resources) -> None:
    GalleryWriter(resources, "staff").make(FIRST, challenger=SECOND)
    for _ in range(2):
        queue = ComparisonQueue(resources.database, lambda: 0)
        queue.submit(QueuedSearch(PAIR, 3, lambda: {"compared": 3}))
        queue.stop()
    assert read_totals(resources) == (0, 6), "what waited is dropped, and added to what was there"


@on_sqlite
def test_errors_are_counted_and_other_models_are_not(resources: Resources) -> None:
    writer = GalleryWriter(resources, "staff").make(FIRST, challenger=SECOND)
    queue = ComparisonQueue(resources.database, lambda: 0)
    queue.start()
    queue.submit(QueuedSearch(PAIR, 1, lambda: {"compared": 1 // int("0")}))
    queue.submit(QueuedSearch(PAIR._replace(champion=THIRD.id), 1, lambda: {"compared": 1}))
    queue.submit(QueuedSearch(PAIR._replace(collection="gone"), 1, lambda: {"compared": 1}))
    limit = time.monotonic() + LIMIT_SECONDS
    while read_totals(resources) is None:
        assert time.monotonic() < limit
        time.sleep(0.05)
    writer.point(champion=SECOND.id, challenger=None)
    queue.submit(QueuedSearch(PAIR, 1, lambda: {"compared": 1}))
    time.sleep(0.2)
    queue.stop()
    with reading(resources.database) as session:
        [totals] = session.scalars(select(ShadowTotals)).all()
        assert (totals.failed, totals.compared) == (1, 0)


def test_outcomes_are_compared_by_people_decision_and_probability() -> None:
    champion = SearchOutcome((2, 4, 6), "match", "p1", 0.9)
    same = compare_outcomes(champion, champion)
    assert (same["same_first"], same["same_decision"], same["overlap"], same["named_by_both"]) == (1, 1, 1, 1)
    other = compare_outcomes(champion, SearchOutcome((4, 2, 8), "match", "p2", 0.7))
    assert (other["same_first"], other["same_decision"], other["named_differently"]) == (0, 0, 1)
    assert other["overlap"] == 0.5
    assert other["probability_difference"] == pytest.approx(-0.2)
    lost = compare_outcomes(champion, SearchOutcome((2,), "unknown"))
    assert (lost["same_first"], lost["named_by_champion_only"], lost["named_by_both"]) == (1, 1, 0)
    assert "probabilities" not in lost
    assert compare_outcomes(SearchOutcome((), "unknown"), champion)["named_by_challenger_only"] == 1
    empty = compare_outcomes(SearchOutcome((), None), SearchOutcome((), None))
    assert (empty["overlap"], empty["same_first"]) == (1, 1)
    assert "decided" not in empty, "a collection that is not calibrated decides nothing"


def test_shares_and_means_have_intervals() -> None:
    share = ComparedShareOut.from_counts(9, 10)
    assert share.low is not None
    assert share.high is not None
    assert (share.value, round(share.low, 4), round(share.high, 4)) == (0.9, 0.555, 0.9975)
    assert ComparedMeanOut.from_sums(0, 0, 0).value is None
    one = ComparedMeanOut.from_sums(1, 0.5, 0.25)
    assert (one.value, one.low) == (0.5, None)
    three = ComparedMeanOut.from_sums(3, 6.0, 14.0)  # of 1, 2 and 3
    assert three.low == pytest.approx(2 - 4.3027 / np.sqrt(3), abs=1e-3)
