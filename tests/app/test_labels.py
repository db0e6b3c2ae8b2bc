"""Labels over HTTP: which are accepted, which are refused, and the consensus that they form."""

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clusters import service as cluster_service
from app.db.session import reading, writing
from app.db.tables import ClusteredFace, Collection, Face, FaceCluster, Label
from app.deps.paging import read_page
from app.errors import AppError, Busy, Unauthenticated
from app.galleries.label_consensus import ConsensusRule, decide_collection, decide_consensus
from app.labels import label_suggestions, question_faces, withdrawal
from app.labels import service as label_service
from ml.active_learning import PairAnswers, choose_pairs
from tests.databases import delete_collections
from tests.gallery import enrol
from tests.raw_http import connect
from tests.service import Service

REQUEST_THREADS = 40
"""AnyIO's default, which the service keeps."""


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module. The test's faces and labels are removed after it."""
    yield lasting_service
    delete_collections(lasting_service.resources.database)


@pytest.fixture
def faces(service: Service) -> list[Face]:
    return enrol(service.resources, "c", range(4), shots=2, strength=0.3)


def pair(a: Face, b: Face, same: bool = True, **more: object) -> dict[str, object]:
    return {"face_a": a.face_id, "face_b": b.face_id, "same": same, **more}


def test_valid_labels_are_accepted_and_invalid_ones_refused_one_by_one(service: Service, faces: list[Face]) -> None:
    labels = [
        pair(faces[1], faces[0], note="twins?"),
        pair(faces[0], faces[0]),
        {"face_a": faces[0].face_id, "face_b": "nobody", "same": True},
        pair(faces[0], faces[2], False, task="height"),
        pair(faces[0], faces[2], False, task="age"),
    ]
    answer = service.client.post("/v1/labels", json={"labels": labels})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert result["accepted"] == 1
    assert [(r["index"], r["code"]) for r in result["refused"]] == [
        (1, "SameFace"), (2, "ResourceNotFound"), (3, "UnknownTask"), (4, "TaskDisabled"),
    ]  # fmt: skip
    [kept] = service.client.get("/v1/labels").json()["labels"]
    assert {kept["face_a"], kept["face_b"]} == {faces[0].face_id, faces[1].face_id}
    assert (kept["by"], kept["note"], kept["task"]) == ("test", "twins?", "identity")


REFUSED = [
    ({"face_a": "x", "face_b": "x", "same": True}, "SameFace"),
    ({"face_a": "x", "face_b": "y", "same": True}, "ResourceNotFound"),
    ({"face_a": "x\0", "face_b": "y", "same": True}, "InvalidParameter"),
    ({"face_a": "x", "face_b": "y", "same": "perhaps"}, "InvalidParameter"),
    ({"face_a": "x", "face_b": "y", "same": True, "sure": 1}, "InvalidParameter"),
]
UNPARSED = [
    (b'{"labels": ' + b"9" * 5_000 + b"}", 400, "4,300 digits"),
    (b'{"labels": "\xff"}', 400, "not UTF-8"),
    (b'{"labels": ' + b"[" * 100, 422, "64 levels"),
    (json.dumps(dict.fromkeys(map(str, range(2_000)), 1)).encode(), 422, "1,000 keys"),
]
NO_LABELS = [b"", b"\xff\xfe", b"one,two\n1,2\n", b'face_a,face_b,same\n"x,y', b"{not json}\n"]


def test_a_request_with_only_invalid_labels_gets_a_problem(service: Service) -> None:
    for label, code in REFUSED:
        answer = service.client.post("/v1/labels", json={"labels": [label]})
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    for bad in NO_LABELS:
        answer = service.client.post("/v1/labels:import", content=bad, headers={"content-type": "text/plain"})
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter"), bad
    for body, status, limit in UNPARSED:
        answer = service.client.post("/v1/labels", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        assert limit in answer.json()["detail"]


def test_a_label_across_collections_needs_a_key_for_both(service: Service, faces: list[Face]) -> None:
    [other] = enrol(service.resources, "d", [9], shots=1)
    body = {"labels": [pair(faces[0], other)]}
    assert service.client.post("/v1/labels", json=body, headers=service.key("operator", "c")).status_code == 422
    assert service.client.post("/v1/labels", json=body, headers=service.key("operator", "c", "d")).status_code == 200
    assert service.client.post("/v1/labels", json=body, headers=service.key("reader")).status_code == 403
    seen = service.client.get("/v1/labels", headers=service.key("operator", "c")).json()
    assert seen["labels"] == []


def test_labels_can_be_sent_in_bulk_as_csv_json_lines_or_form(service: Service, faces: list[Face]) -> None:
    a, b, c, _ = (f.face_id for f in faces[:4])
    csv = (
        f'\ufeffface_a,face_b,same,by,note\n{a},{b},true,ana,\n{a},{c},no,ana,"far, I think"\n{a},{a},1,ana,\n{a},,1\n'
    )
    answer = service.client.post("/v1/labels:import", content=csv.encode(), headers={"content-type": "text/csv"})
    assert answer.json()["accepted"] == 2, answer.text
    assert [(r["index"], r["code"]) for r in answer.json()["refused"]] == [(2, "SameFace"), (3, "InvalidParameter")]
    lines = f'{{"face_a": "{a}", "face_b": "{b}", "same": false}}\n\n{{"face_a": 3}}\n'
    answer = service.client.post("/v1/labels:import", content=lines)
    assert (answer.json()["accepted"], answer.json()["refused"][0]["index"]) == (1, 1)
    answer = service.client.post("/v1/labels:import", files={"file": ("labels.jsonl", lines.encode())})
    assert answer.json()["accepted"] == 1
    assert len(service.client.get("/v1/labels").json()["labels"]) == 4


def test_slow_labels_in_bulk_leave_threads_to_other_requests(service: Service) -> None:
    url, bearer = httpx.URL(service.url), service.key("operator")["Authorization"]
    head = f"POST /v1/labels:import HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\nContent-Length: 60000\r\n"
    with ExitStack() as stack:
        for kind in ("text/csv", "multipart/form-data; boundary=x"):
            for _ in range(REQUEST_THREADS + 1):
                connection = stack.enter_context(connect(url.port or 80))
                connection.sendall(f"{head}Content-Type: {kind}\r\n\r\n--x\r\n".encode())
        for _ in range(3):
            assert service.client.get("/v1/collections", timeout=10).status_code == 200


def test_a_form_of_labels_has_one_part(service: Service) -> None:
    file = ("labels.csv", b"face_a,face_b,same\n")
    for files in ({"other": file}, [("file", file), ("file", file)]):
        answer = service.client.post("/v1/labels:import", files=files)  # type: ignore[arg-type]
        assert answer.status_code == 422
        assert "one part named `file`" in answer.json()["detail"]


def test_a_later_label_replaces_an_earlier_one_and_the_majority_decides(service: Service, faces: list[Face]) -> None:
    a, b, c, d = faces[:4]
    labels = [
        pair(a, b, True, by="ana"), pair(b, a, False, by="ana"),  # ana has changed her mind
        pair(a, c, True, by="ana"), pair(a, c, False, by="ben"),  # a tie
        pair(a, d, True, by="ana"), pair(a, d, True, by="ben"), pair(a, d, False, by="eva"),
    ]  # fmt: skip
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == 7
    with reading(service.resources.database) as session:
        settled = decide_collection(session, "c", "identity")
    assert settled.pairs.tolist() == [[a.pk, b.pk], [a.pk, d.pk]]
    assert settled.same.tolist() == [False, True]
    assert settled.weights.tolist() == pytest.approx([1, 1 / 3])
    assert settled.unsettled == 1
    contradicted = service.client.get("/v1/labels", params={"contradicting": True}).json()["labels"]
    assert {frozenset((t["face_a"], t["face_b"])) for t in contradicted} == {
        frozenset((a.face_id, c.face_id)), frozenset((a.face_id, d.face_id)),
    }  # fmt: skip
    assert len(contradicted) == 5


def test_labels_added_during_a_withdrawal_stay(
    service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a labeller who adds some again and again would never be withdrawn, and of others nothing is read anew."""
    others = enrol(service.resources, "d", range(2))
    labels = [pair(a, b, by="mallory") for a, b in itertools.pairwise(faces[:3])]
    service.client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    change_collections = label_service.change_collections

    def add_label_meanwhile(session: Session, collections: Iterable[str], *, is_addition: bool) -> None:
        change_collections(session, collections, is_addition=is_addition)
        for first, second in (others[:2], (faces[2], others[0]), (faces[2], faces[3])):
            a, b = sorted((first.pk, second.pk))
            session.add(Label(task="identity", face_a=a, face_b=b, same=True, by="mallory"))
        session.flush()

    monkeypatch.setattr(withdrawal, "LABELS_PER_STEP", 1)
    with monkeypatch.context() as patched:
        patched.setattr(label_service, "change_collections", add_label_meanwhile)
        answer = service.client.delete("/v1/labels", params={"by": "mallory"}).raise_for_status().json()
    assert (answer["withdrawn"], answer["changed"]) == (2, 2)
    with reading(service.resources.database) as session:
        rereads = dict(session.execute(select(Collection.id, Collection.label_reread_change)).all())
        withdrawn = select(Label.face_a, Label.face_b).where(Label.withdrawn_at.is_not(None)).order_by(Label.pk)
        assert [tuple(row) for row in session.execute(withdrawn)] == [
            (a.pk, b.pk) for a, b in itertools.pairwise(faces[:3])
        ]
    assert (rereads["c"] > 0, rereads["d"]) == (True, 0)


def count_withdrawn(service: Service) -> int:
    with reading(service.resources.database) as session:
        return session.scalar(select(func.count()).where(Label.withdrawn_at.is_not(None))) or 0


def test_many_labels_are_withdrawn_in_steps_which_others_see(
    service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction, 400,000 labels kept all others from writing to SQLite for 6 s."""
    labels = [pair(a, b, by="mallory") for a, b in itertools.pairwise(faces)]
    service.client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    change_collections, seen = label_service.change_collections, list[int]()

    def note_step(*arguments: Any, is_addition: bool) -> None:
        seen.append(count_withdrawn(service))
        change_collections(*arguments, is_addition=is_addition)

    monkeypatch.setattr(label_service, "change_collections", note_step)
    monkeypatch.setattr(withdrawal, "LABELS_PER_STEP", 3)
    answer = service.client.delete("/v1/labels", params={"by": "mallory"}).raise_for_status().json()
    assert (answer["withdrawn"], answer["changed"], len(answer["pairs"])) == (7, 7, 7)
    assert seen == [0, 3, 6]


def test_others_write_while_it_is_computed_what_a_withdrawal_changes(
    service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.client.post("/v1/labels", json={"labels": [pair(faces[0], faces[1], by="mallory")]}).raise_for_status()
    read_rule = withdrawal.read_rule

    def read_and_write(*arguments: Any) -> Any:
        service.client.post("/v1/labels", json={"labels": [pair(faces[0], faces[2])]}).raise_for_status()
        return read_rule(*arguments)

    monkeypatch.setattr(withdrawal, "read_rule", read_and_write)
    assert service.client.delete("/v1/labels", params={"by": "mallory"}).json()["withdrawn"] == 1


@pytest.mark.parametrize("error", [Busy("the database is busy"), Unauthenticated("this key was revoked")], ids=str)
def test_a_withdrawal_that_fails_between_two_steps_says_so_and_is_repeated(
    service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch, error: AppError
) -> None:
    a, b, c = faces[:3]
    labels = [
        pair(a, b, by="mallory"), pair(a, c, by="mallory"), pair(a, c, by="ana"), pair(b, c, by="mallory"),
        pair(a, b, False, by="mallory"),
    ]  # fmt: skip
    service.client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    change_collections = label_service.change_collections

    def fail_after_a_step(*arguments: Any, is_addition: bool) -> None:
        if count_withdrawn(service):
            raise error
        change_collections(*arguments, is_addition=is_addition)

    monkeypatch.setattr(withdrawal, "LABELS_PER_STEP", 2)
    with monkeypatch.context() as patched:
        patched.setattr(label_service, "change_collections", fail_after_a_step)
        answer = service.client.delete("/v1/labels", params={"by": "mallory"})
    assert (answer.status_code, answer.json()["detail"][:39]) == (
        error.status,
        "2 labels or more were withdrawn, but pe",
    )
    with reading(service.resources.database) as session:
        settled = decide_collection(session, "c", "identity")
    assert settled.same.tolist() == [False, True, True], "no label counts that was replaced"
    answer = service.client.delete("/v1/labels", params={"by": "mallory"}).raise_for_status().json()
    assert (answer["withdrawn"], answer["changed"]) == (2, 2)


def test_all_labels_of_a_labeller_can_be_withdrawn_at_once(service: Service, faces: list[Face]) -> None:
    labels = [pair(a, b, by="mallory") for a, b in itertools.pairwise(faces)] + [
        pair(faces[0], faces[1], False, by="ana")
    ]
    service.client.post("/v1/labels", json={"labels": labels})
    assert service.client.delete("/v1/labels").status_code == 422
    assert service.client.delete("/v1/labels", params={"by": "mallory"}).json()["withdrawn"] == 7
    assert service.client.delete("/v1/labels", params={"by": "mallory"}).json()["withdrawn"] == 0
    with reading(service.resources.database) as session:
        settled = decide_collection(session, "c", "identity")
    assert settled.same.tolist() == [False]
    kept = service.client.get("/v1/labels", params={"by": "mallory"}).json()["labels"]
    assert all(k["withdrawn_at"] for k in kept)
    assert not service.client.get("/v1/labels", params={"contradicting": True}).json()["labels"]


def test_labels_can_be_listed_by_face_and_in_pages(service: Service, faces: list[Face]) -> None:
    labels = [pair(a, b) for a, b in itertools.combinations(faces[:4], 2)]
    service.client.post("/v1/labels", json={"labels": labels})
    of = service.client.get("/v1/labels", params={"face": faces[0].face_id}).json()["labels"]
    assert len(of) == 3
    first = service.client.get("/v1/labels", params={"limit": 4}).json()
    rest = service.client.get("/v1/labels", params={"limit": 4, "next_token": first["next_token"]}).json()
    ids = [label["id"] for label in first["labels"] + rest["labels"]]
    assert len(ids) == 6
    assert ids == sorted(ids)
    assert rest["next_token"] is None
    assert service.client.get("/v1/labels?by=%00").status_code == 422


def test_suggested_pairs_are_not_suggested_again_once_they_are_labelled(service: Service, faces: list[Face]) -> None:
    enrol(service.resources, "c", range(20, 30), shots=2, named=False)
    body = {"collection": "c", "limit": 8}
    pairs = service.client.post("/v1/labels:suggest", json=body).json()["pairs"]
    assert len(pairs) == 8
    shown = [p[end] for p in pairs for end in ("face_a", "face_b")]
    assert max(shown.count(f) for f in shown) <= 2
    labels = [{"face_a": p["face_a"], "face_b": p["face_b"], "same": False} for p in pairs]
    service.client.post("/v1/labels", json={"labels": labels})
    again = service.client.post("/v1/labels:suggest", json=body).json()["pairs"]
    assert not {frozenset((p["face_a"], p["face_b"])) for p in pairs} & {
        frozenset((p["face_a"], p["face_b"])) for p in again
    }
    assert service.client.post("/v1/labels:suggest", json={"collection": "nowhere"}).status_code == 404
    assert service.client.post("/v1/labels:suggest", json=body, headers=service.key("operator", "d")).status_code == 404


def test_suggestions_use_labels_of_faces_outside_the_sample(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of faces outside the sample count too; withdrawn labels do not."""
    enrol(service.resources, "far", range(40, 44), shots=2)
    with reading(service.resources.database) as session:
        faces = session.scalars(select(Face).where(Face.collection_id == "far").order_by(Face.pk)).all()
    labels = [pair(faces[0], faces[1]), pair(faces[0], faces[2], same=False), pair(faces[3], faces[6], same=False)]
    service.client.post("/v1/labels", json={"labels": labels})
    service.client.post("/v1/labels", json={"labels": [pair(faces[4], faces[5]) | {"by": "mallory"}]})
    service.client.delete("/v1/labels", params={"by": "mallory"})
    received, original = list[PairAnswers](), choose_pairs

    def record(*arguments: Any) -> Any:
        received.append(arguments[3])
        return original(*arguments)

    monkeypatch.setattr(question_faces, "SAMPLE_FACES", 2)
    monkeypatch.setattr(label_suggestions, "choose_pairs", record)
    assert service.client.post("/v1/labels:suggest", json={"collection": "far"}).status_code == 200
    assert sorted(received[0].same.tolist()) == [False, False, True]


SUBJECT = "/v1/collections/c/subjects/p0"
CHANGES = {
    "refused": ("PATCH", SUBJECT, {"consent": False}),
    "expired": ("PATCH", SUBJECT, {"retain_until": "2020-01-01T00:00:00Z"}),
    "erased": ("DELETE", SUBJECT, None),
    "merged": ("POST", f"{SUBJECT}:merge", {"into": "p1"}),
    "collection deleted": ("DELETE", "/v1/collections/c", None),
}


def list_suggested_subjects(answer: dict[str, Any]) -> set[str | None]:
    of_pairs = {pair[end] for pair in answer["pairs"] for end in ("subject_a", "subject_b")}
    return of_pairs | {face["subject_id"] for cluster in answer["clusters"] for face in cluster["faces"]}


@pytest.mark.parametrize(
    ("kind", "change"), [*(("pairs", change) for change in CHANGES), ("clusters", "refused"), ("clusters", "merged")]
)
def test_suggestions_name_people_as_they_are_once_the_questions_are_chosen(
    service: Service, kind: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To choose takes seconds; answers named people who were erased, had refused or were merged meanwhile."""
    people = [enrol(service.resources, "c", [who], shots=4, strength=0.3, named=False) for who in (71, 72, 73)]
    for number, faces in enumerate(people):
        patched = service.client.patch(f"/v1/collections/c/faces/{faces[0].face_id}", json={"subject": f"p{number}"})
        assert patched.status_code == 200, patched.text
    body = {"collection": "c", "kind": kind, "limit": 40}
    method, path, changed = CHANGES[change]
    before = service.client.post("/v1/labels:suggest", json=body).json()
    assert {"p0", "p1"} <= list_suggested_subjects(before)

    def choose_and_change(*arguments: Any) -> Any:
        chosen = choose_pairs(*arguments)
        answer = service.client.request(method, path, json=changed)
        assert answer.is_success, answer.text
        return chosen

    monkeypatch.setattr(label_suggestions, "choose_pairs", choose_and_change)
    answer = service.client.post("/v1/labels:suggest", json=body)
    if change == "collection deleted":
        assert (answer.status_code, answer.json()["code"]) == (404, "ResourceNotFound")
        return
    assert answer.status_code == 200
    assert answer.json()[kind], "the others are suggested still"
    assert "p0" not in list_suggested_subjects(answer.json())
    assert people[0][0].face_id not in answer.text or change == "merged"


@pytest.mark.parametrize("path", ["/v1/labels", "/v1/collections/c/clusters/{cluster}"])
def test_a_list_leaves_out_a_face_that_is_erased_while_it_is_read(
    service: Service, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL sees the deletion in the next statement, which found no face: 500."""
    faces = enrol(service.resources, "c", [81], shots=4, named=False)
    labels = [pair(faces[0], face) for face in faces[1:]]
    service.client.post("/v1/labels", json={"labels": labels}).raise_for_status()
    with writing(service.resources.database) as session:
        cluster = FaceCluster(collection_id="c", probability=0.9)
        session.add(cluster)
        session.flush()
        session.add_all(ClusteredFace(face_pk=face.pk, cluster_pk=cluster.pk) for face in faces)
        path = path.format(cluster=cluster.pk)

    def read_and_delete(*arguments: Any) -> Any:
        page = read_page(*arguments)
        service.client.delete(f"/v1/collections/c/faces/{faces[3].face_id}").raise_for_status()
        return page

    with monkeypatch.context() as patched:
        for module in (label_service, cluster_service):
            patched.setattr(module, "read_page", read_and_delete)
        assert service.client.get(path).status_code == 200
    assert faces[3].face_id not in service.client.get(path).raise_for_status().text


def test_pairs_that_follow_from_labels_are_not_suggested(service: Service) -> None:
    faces = enrol(service.resources, "small", [60], shots=4, named=False)
    labels = [pair(a, b, by=by) for a, b in itertools.pairwise(faces) for by in ("ana", "ben")]
    service.client.post("/v1/labels", json={"labels": labels})
    assert service.client.post("/v1/labels:suggest", json={"collection": "small"}).json()["pairs"] == []
    service.client.delete("/v1/labels", params={"by": "ana"})
    service.client.post("/v1/labels", json={"labels": [pair(faces[0], faces[1], same=False, by="ana")]})
    [left] = service.client.post("/v1/labels:suggest", json={"collection": "small", "limit": 1}).json()["pairs"]
    ends = {left["face_a"], left["face_b"]}
    assert faces[0].face_id in ends, "a tie decides nothing"
    assert 0 < left["same_probability"] < 1


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_faces_give_no_suggestion(service: Service, count: int) -> None:
    enrol(service.resources, f"c{count}", range(count), shots=1)
    answer = service.client.post("/v1/labels:suggest", json={"collection": f"c{count}"})
    assert (answer.status_code, answer.json()["pairs"]) == (200, [])


def test_weights_and_a_quorum_prevent_one_labeller_from_deciding_alone() -> None:
    votes = {(1, 2): {"ana": True, "mallory": False}, (3, 4): {"mallory": True}}
    trusted = decide_consensus(votes, ConsensusRule(weights={"mallory": 0.1}))
    assert trusted.same.tolist() == [True, True]
    assert trusted.weights.tolist() == pytest.approx([0.45, 0.1])
    assert len(decide_consensus(votes, ConsensusRule(quorum=2))) == 0
    assert decide_consensus(votes, ConsensusRule(weights={"mallory": 0.0})).pairs.tolist() == [[1, 2]]
