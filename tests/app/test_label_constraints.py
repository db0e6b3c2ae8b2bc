"""Labels change the next search, without training. The vectors are few and flat, so that every distance is obvious."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.access import keys
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Embedding, Face, Subject
from app.galleries.label_consensus import read_votes_after
from app.resources import Resources
from app.serving.labels.constraints import leave_out_refused
from app.serving.labels.reader import read_constraints
from ml.types import Rows
from tests.rows import GalleryWriter, make_model
from tests.service import serve_api

MODEL = make_model("m-one", dim=2)
LIMIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def urls(lasting: Resources) -> Iterator[tuple[str, str]]:
    """Two API servers over the same tables."""
    with serve_api(lasting.settings) as first, serve_api(lasting.settings) as second:
        yield first, second


@pytest.fixture(scope="module")
def clients(lasting: Resources, urls: tuple[str, str]) -> Iterator[list[httpx.Client]]:
    with writing(lasting.database) as session:
        secret = keys.create_key(session, "operator", "test")[1]
    opened = [httpx.Client(base_url=url, headers={"x-api-key": secret}, timeout=30) for url in urls]
    yield opened
    for client in opened:
        client.close()


class Staff:
    """A collection of faces in the plane: Ann at (0, 0) and (1, 0), Ben at (10, 0) and (11, 0), strangers elsewhere."""

    def __init__(self, resources: Resources, clients: list[httpx.Client]) -> None:
        self.name = f"staff-{uuid4().hex[:8]}"
        self.resources, self.clients = resources, clients
        self.change = "0"  # that searches ask to see
        self.gallery = GalleryWriter(resources, self.name).make(MODEL)
        self.ids = dict(
            zip(["ann0", "ann1", "ben0", "ben1"], self.add([0, 1, 10, 11], "ann", "ann", "ben", "ben"), strict=True)
        )

    def add(self, positions: list[float], *subjects: str | None) -> list[str]:
        rows = np.array([[x, 0] for x in positions], np.float32)
        return self.gallery.add({MODEL.id: rows}, subjects)

    def label(self, first: str, second: str, same: bool, by: str = "eve") -> None:
        pair = {"face_a": self.ids.get(first, first), "face_b": self.ids.get(second, second), "same": same, "by": by}
        answer = self.clients[0].post("/v1/labels", json={"labels": [pair]})
        assert answer.json() == {"accepted": 1, "refused": [], "refused_count": 0}

    def wait(self) -> None:
        """Wait until both servers know the last change."""
        with reading(self.resources.database) as session:
            collection = session.get_one(Collection, self.name)
            deployment = session.get_one(Deployment, (self.name, "identity"))
            generation = f"{deployment.version}.{collection.change}"
        limit = time.monotonic() + LIMIT_SECONDS
        for client in self.clients:
            while self.search(5, client=client)["index_generation"] != generation:
                assert time.monotonic() < limit
                time.sleep(0.02)

    def search(self, position: float, client: httpx.Client | None = None, **params: Any) -> dict[str, Any]:
        url = f"/v1/collections/{self.name}/search:by-embedding"
        body = {"vector": [position, 0]}
        return self._answer(lambda c: c.post(url, json=body, params=params, headers=self._headers), client)

    def search_face(self, name: str, **params: Any) -> dict[str, Any]:
        url = f"/v1/collections/{self.name}/faces/{self.ids.get(name, name)}/search"
        return self._answer(lambda c: c.post(url, params=params, headers=self._headers), None)

    @property
    def _headers(self) -> dict[str, str]:
        return {"X-Change-Number": self.change}

    def _answer(self, ask: Any, client: httpx.Client | None) -> dict[str, Any]:
        limit = time.monotonic() + LIMIT_SECONDS
        while (answer := ask(client or self.clients[1])).status_code == 503 and time.monotonic() < limit:
            time.sleep(0.02)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
def staff(lasting: Resources, clients: list[httpx.Client]) -> Staff:
    """A collection of the test's own. It stays, since the servers that follow it serve the whole module."""
    return Staff(lasting, clients)


def subjects(answer: dict[str, Any]) -> list[str | None]:
    [face] = answer["faces"]
    return [match["subject"] and match["subject"]["id"] for match in face["matches"]]


def face_ids(answer: dict[str, Any]) -> list[str]:
    return [match["face_id"] for match in answer["faces"][0]["matches"]]


def nearest(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["faces"][0]["matches"][0])


def effects(answer: dict[str, Any]) -> list[tuple[str, str | None]]:
    [face] = answer["faces"]
    return [(c["effect"], c["subject"] and c["subject"]["id"]) for c in face["corrected_by"]]


def test_a_face_that_is_ruled_out_never_matches_the_person(staff: Staff) -> None:
    [stranger] = staff.add([2], None)
    staff.wait()
    assert subjects(staff.search_face(stranger)) == ["ann", "ben"]
    staff.label(stranger, "ann1", False)
    staff.wait()
    answer = staff.search_face(stranger)
    assert subjects(answer) == ["ben"]
    assert effects(answer) == [("ruled_out", "ann"), ("ruled_out", None)]
    assert stranger not in face_ids(staff.search_face("ann1", group_by="face"))
    assert staff.ids["ann1"] not in face_ids(staff.search_face(stranger, group_by="face"))


@pytest.mark.parametrize(("position", "rejected"), [(1.9, "ann"), (1.4, None)])
def test_a_new_photo_nearer_to_the_face_that_was_ruled_out_is_not_the_person(
    staff: Staff, position: float, rejected: str | None
) -> None:
    [stranger] = staff.add([2], None)
    staff.label("ann1", stranger, False)
    staff.wait()
    answer = staff.search(position)
    passes = dict(zip(subjects(answer), [match["passes"] for match in answer["faces"][0]["matches"]], strict=True))
    assert passes == {"ann": None, None: None, "ben": None} | {rejected: False}, "it is the one or the other"
    assert effects(answer) == [("rejected", rejected)]
    [correction] = answer["faces"][0]["corrected_by"]
    assert {correction["face_a"], correction["face_b"]} == {staff.ids["ann1"], stranger}
    assert correction["same"] is False


def test_faces_that_are_the_same_are_one_person(staff: Staff) -> None:
    [other] = staff.add([30], None)
    staff.wait()
    assert subjects(staff.search(29)) == [None, "ben", "ann"]
    staff.label(other, "ann0", True)
    staff.wait()
    answer = staff.search(29)
    assert subjects(answer) == ["ann", "ben"]
    assert effects(answer) == [("joined", "ann")]
    assert face_ids(answer)[0] == other
    answer = staff.search_face(other)
    assert (answer["faces"][0]["decision"], answer["faces"][0]["subject"]["id"]) == ("match", "ann")
    assert [m["passes"] for m in answer["faces"][0]["matches"]] == [None, True], "Ben is nearer, Ann is confirmed"


@pytest.mark.parametrize("patch", [{"consent": False}, {"retain_until": "2020-01-01T00:00:00Z"}], ids=list)
def test_somebody_who_refused_has_no_part_in_what_labels_mean(staff: Staff, patch: dict[str, Any]) -> None:
    """From the answer to the change on, also at the other server if a search asks to see it, and after that."""
    other, stranger = staff.add([30, 8], None, None)
    staff.label(other, "ann0", True)
    staff.label(stranger, "ann1", False)
    staff.wait()
    assert staff.search_face(other)["faces"][0]["subject"]["id"] == "ann"
    subject = f"/v1/collections/{staff.name}/subjects/ann"
    refused = staff.clients[0].patch(subject, json=patch)
    assert refused.status_code == 200
    staff.change = refused.headers["x-change-number"]
    for is_known in (False, True):
        if is_known:
            staff.wait()
        answers = [staff.search(29, client=client) for client in staff.clients]
        answers += [staff.search_face(other), staff.search_face(stranger, limit=3)]
        assert [subjects(answer) for answer in answers] == [[None, "ben", None]] * 2 + [["ben", None]] * 2, is_known
        assert not any(effects(answer) for answer in answers)
        assert not any(text in str(answers) for text in ("'ann'", staff.ids["ann0"], staff.ids["ann1"]))
    staff.change = staff.clients[0].patch(subject, json=dict.fromkeys(patch)).headers["x-change-number"]
    assert staff.search_face(other)["faces"][0]["subject"]["id"] == "ann", "also from the answer on"


def test_labels_of_somebody_have_no_effect_from_the_end_of_retention_on(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change of the collection tells that the time has passed."""
    [other] = staff.add([30], None)
    staff.label(other, "ann0", True)
    ends = time.time() + 3_000
    with writing(staff.resources.database) as session:
        session.execute(update(Subject).where(Subject.id == "ann").values(retain_until=ends))
    with reading(staff.resources.database) as session:
        row = session.get_one(Collection, staff.name)
        served = read_constraints(session, staff.name, "identity", row.change)
        assert leave_out_refused(session, staff.name, served) is served
        assert len(served.constraints.joined) == 2
        monkeypatch.setattr("app.serving.labels.constraints.now", lambda: ends)
        ended = leave_out_refused(session, staff.name, served)
        nameless = {pk: face for pk, face in served.faces.items() if face.subject is None}
        assert (len(ended.constraints.joined), ended.subjects, ended.faces) == (0, {}, nameless)
        assert leave_out_refused(session, staff.name, served) is ended, "it is derived once"


@pytest.mark.parametrize(
    ("changes", "joined", "named"),
    [
        ({"ann": "delete"}, 0, 0),
        ({"ann": "merge"}, 2, 1),
        ({"ann": "merge", "ben": "refuse"}, 0, 0),
        ({"ann0": "cid", "cid": "refuse"}, 0, 0),
        ({"ann0": "cid", "ann": "delete"}, 0, 0),
        ({"ann0": "cid", "ann": "refuse"}, 0, 0),
        ({"ann0": "cid"}, 2, 1),
        ({"ann": "merge", "ann0": "cid", "ben": "delete"}, 0, 0),
    ],
    ids=str,
)
def test_nobody_who_is_erased_or_refuses_is_named_by_labels_that_are_still_to_be_read_again(
    staff: Staff, changes: dict[str, str], joined: int, named: int
) -> None:
    """Whoever was hidden before, by the end of `retain_until` or a refusal, would be found by name once more.

    changes: in this order: subjects are deleted, refuse or are merged into Ben, and faces are given to Cid
    """
    other, _ = staff.add([30, 50], None, "cid")
    staff.label(other, "ann0", True)
    staff.label(other, "ann1", True)
    client, path = staff.clients[0], f"/v1/collections/{staff.name}"
    with reading(staff.resources.database) as session:
        change = session.get_one(Collection, staff.name).change
        served = read_constraints(session, staff.name, "identity", change)
    for name, what in changes.items():
        if what == "delete":
            answer = client.delete(f"{path}/subjects/{name}")
        elif what == "refuse":
            answer = client.patch(f"{path}/subjects/{name}", json={"consent": False})
        elif what == "merge":
            answer = client.post(f"{path}/subjects/{name}:merge", json={"into": "ben"})
        else:
            answer = client.patch(f"{path}/faces/{staff.ids[name]}", json={"subject": what})
        answer.raise_for_status()
    with reading(staff.resources.database) as session:
        left = leave_out_refused(session, staff.name, served)
    assert (len(left.constraints.joined), len(left.subjects)) == (joined, named)


def test_a_label_of_the_same_person_brings_faces_that_the_search_did_not_reach(staff: Staff) -> None:
    [far, *_] = staff.add([1000, *np.linspace(12, 13, 80)], *[None] * 81)
    staff.label("ann0", far, True)
    staff.wait()
    answer = staff.search_face("ann0", limit=3, group_by="face")
    assert far not in face_ids(answer)
    answer = staff.search_face(far, limit=200, group_by="face")
    assert staff.ids["ann0"] in face_ids(answer)
    assert answer["faces"][0]["subject"]["id"] == "ann"


def test_withdrawn_labels_have_no_effect(staff: Staff) -> None:
    [stranger] = staff.add([2], None)
    staff.label(stranger, "ann1", False, by=staff.name)
    staff.wait()
    assert "ann" not in subjects(staff.search_face(stranger))
    assert staff.clients[0].delete("/v1/labels", params={"by": staff.name}).json()["withdrawn"] == 1
    staff.wait()
    assert subjects(staff.search_face(stranger))[0] == "ann"


def test_a_tie_of_labellers_has_no_effect(staff: Staff) -> None:
    [stranger] = staff.add([2], None)
    staff.label(stranger, "ann1", False, by="a")
    staff.label(stranger, "ann1", True, by="b")
    staff.wait()
    answer = staff.search_face(stranger)
    assert (subjects(answer), effects(answer)) == (["ann", "ben"], [])


def test_constraints_survive_another_model_a_roll_back_and_merging(staff: Staff) -> None:
    [stranger] = staff.add([2], "guest")
    staff.label(stranger, "ann1", False)
    other = make_model("m-two", dim=2, seed=1)
    with writing(staff.resources.database) as session:
        staff.resources.models.keep(session, other)
        faces = session.scalars(select(Face).where(Face.collection_id == staff.name).order_by(Face.pk)).all()
        rows = {other.id: np.array([[x / 2, 1] for x in (0, 1, 10, 11, 2)], np.float32)}
        _embed(session, [face.pk for face in faces], rows)
    for champion in (other.id, MODEL.id):
        staff.gallery.point(champion=champion)
        staff.wait()
        answer = staff.search_face(stranger)
        assert (answer["model"], subjects(answer)) == (champion, ["ben"])
    url = f"/v1/collections/{staff.name}/subjects/guest:merge"
    assert staff.clients[0].post(url, json={"into": "ben"}).status_code == 200
    staff.wait()
    answer = staff.search(1.9)
    assert (set(subjects(answer)), effects(answer)) == ({"ann", "ben"}, [("rejected", "ann")]), (
        "Ben has the guest's face now"
    )


def _embed(session: Any, pks: list[int], rows: dict[str, Rows]) -> None:
    for model, vectors in rows.items():
        for pk, row in zip(pks, vectors, strict=True):
            session.add(Embedding(model_id=model, task="identity", face_pk=pk, vector=row.astype("<f4").tobytes()))


def test_constraints_follow_the_people_of_labelled_faces(staff: Staff) -> None:
    """Labels are only read again after a change that concerns them: here each kind of change but labels."""
    [first, second] = staff.add([30, 40], None, None)
    staff.label(first, "ann0", True)
    staff.label(second, "ben0", True)
    staff.wait()
    collection = f"/v1/collections/{staff.name}"

    def change(answer: httpx.Response) -> None:
        assert answer.status_code in (200, 204), answer.text
        staff.wait()

    change(staff.clients[0].patch(f"{collection}/subjects/ann", json={"external_id": "renamed"}))
    assert nearest(staff.search(30, group_by="face"))["subject"]["external_id"] == "renamed"
    change(staff.clients[0].patch(f"{collection}/faces/{staff.ids['ann0']}", json={"subject": "cem"}))
    assert nearest(staff.search(30, group_by="face"))["subject"]["id"] == "cem"
    change(staff.clients[0].patch(f"{collection}/faces/{staff.ids['ann0']}", json={"role": "distractor"}))
    assert nearest(staff.search(30, group_by="face"))["subject"] is None, "a distractor gives its name to nobody"
    change(staff.clients[0].delete(f"{collection}/faces/{staff.ids['ben0']}"))
    assert nearest(staff.search(40, group_by="face"))["subject"] is None


def test_new_faces_do_not_read_labels_and_a_label_reads_only_itself(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    staff.label("ben0", "ann1", False)
    staff.wait()
    read: list[tuple[str, int]] = []

    def note(session: Session, collection: str, task: str, after: int) -> Any:
        if collection == staff.name:
            read.append(("new" if after else "all", after))
        return read_votes_after(session, collection, task, after)

    monkeypatch.setattr("app.serving.labels.reader.read_votes_after", note)
    staff.add([2], None)
    staff.wait()
    assert read == []
    staff.label("ben1", "ann1", False)
    staff.wait()
    assert [kind for kind, _ in read] == ["new"] * len(staff.clients)
    staff.clients[0].patch(f"/v1/collections/{staff.name}/faces/{staff.ids['ann0']}", json={"subject": "ben"})
    staff.wait()
    assert [kind for kind, _ in read[2:]] == ["all"] * len(staff.clients)


def test_two_servers_apply_a_label_within_seconds(staff: Staff) -> None:
    [stranger] = staff.add([2], None)
    staff.wait()
    started = time.monotonic()
    staff.label(stranger, "ann1", False)
    while not all(effects(staff.search(1.9, client=client)) for client in staff.clients):
        assert time.monotonic() - started < LIMIT_SECONDS, "it takes less than a second on a quiet machine"
