"""A collection of imported vectors, from its first row to its erasure: search, labels, training, publishing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.queue.messages import ImportEmbeddings
from ml.types import Rows
from tests.databases import remove_test_data
from tests.flows.test_training import STRONG
from tests.gallery import crops
from tests.lost_commits import lose_commit
from tests.npy import draw_people, to_npy
from tests.service import Service

BASE = "/v1/collections/c"
IMPORT = f"{BASE}/faces:import-embeddings"
PEOPLE, PHOTOS, DIM = 40, 5, 16
EXTERNAL = {"name": "arcface-r100", "dim": DIM, "metric": "cosine"}


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def gallery(service: Service) -> tuple[Service, Rows, list[str]]:
    """A service with the vectors of 40 people in the collection `c`."""
    made = service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}})
    assert (made.status_code, made.json()["descriptor"]) == (201, {"external": EXTERNAL})
    rows, subjects = draw_people(PEOPLE, PHOTOS, DIM)
    job = service.wait(send(service, rows, make_table(subjects)))
    assert job["state"] == "succeeded", job["problem"]
    assert (job["result"]["enrolled"], job["result"]["refused"]) == (len(rows), 0)
    return service, rows, subjects


def make_table(subjects: list[str]) -> str:
    lines = [f'{name},photo-{i}.jpg,"{{""number"": {i}}}"' for i, name in enumerate(subjects)]
    return "\n".join(["subject,external_image_id,metadata", *lines])


def send(service: Service, rows: Any, table: str | None = None, **headers: str) -> httpx.Response:
    files = {"vectors": to_npy(rows)} | ({} if table is None else {"table": table.encode()})
    return service.client.post(IMPORT, files=files, headers=headers)


def search(service: Service, vector: Any, **params: Any) -> dict[str, Any]:
    body = {"vector": [float(number) for number in vector]}
    answer = service.client.post(
        f"{BASE}/search:by-embedding", json=body, params=params, headers=service.after_last_job
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def find_nearest(service: Service, vector: Any) -> tuple[str, float]:
    nearest = search(service, vector)["faces"][0]["matches"][0]
    return nearest["subject"]["id"], nearest["distance"]


def test_vectors_are_searched_as_they_were_imported(gallery: tuple[Service, Rows, list[str]]) -> None:
    service, rows, subjects = gallery
    for i in range(0, len(rows), 17):
        subject, distance = find_nearest(service, 3 * rows[i])  # only the direction counts
        assert subject == subjects[i]
        assert distance == pytest.approx(0, abs=1e-5)
    faces = service.client.get(f"{BASE}/faces", params={"limit": 3}).json()["faces"]
    assert [face["external_image_id"] for face in faces] != [None] * 3
    assert {face["metadata"]["number"] for face in faces} <= set(range(len(rows)))
    assert faces[0]["bounding_box"] is None
    by_face = service.client.post(f"{BASE}/faces/{faces[0]['face_id']}/search")
    assert by_face.json()["faces"][0]["matches"][0]["subject"] == faces[0]["subject"]


def test_what_needs_a_photo_is_refused_with_a_sentence(gallery: tuple[Service, Rows, list[str]]) -> None:
    service = gallery[0]
    photo = {"file": crops(3, 3000, STRONG)["grey"]}
    face = service.client.get(f"{BASE}/faces", params={"limit": 1}).json()["faces"][0]["face_id"]
    refused = [
        service.client.post(f"{BASE}/faces", files=photo),
        service.client.post(f"{BASE}/search", files=photo),
        service.client.post(f"{BASE}:import", content=b"a tar", headers={"content-type": "application/x-tar"}),
        service.client.post("/v1/verify", params={"collection": "c", "face_id": face}, files=photo),
        service.client.post(f"{BASE}:use-recogniser", json={"recogniser": "lbp"}),
        service.client.post(f"{BASE}/deployments/identity:publish", json={"model": "lbp-l2"}),
        service.client.post("/v1/trainings", json={"collection": "c", "descriptor": "lbp"}),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (409, "ExternalDescriptor"), answer.text
        assert "arcface-r100, 16 numbers" in answer.json()["detail"]
    for path in ("crop", "image"):
        assert service.client.get(f"{BASE}/faces/{face}/{path}").status_code == 404
    shown = service.client.post(f"{BASE}/faces/{face}/search", params={"include": "crop"})
    assert (shown.status_code, "no crops" in shown.json()["detail"]) == (422, True)
    service.client.put("/v1/collections/photos").raise_for_status()
    other = service.client.post("/v1/collections/photos/faces:import-embeddings", files={"vectors": b""})
    assert (other.status_code, other.json()["code"]) == (409, "ExternalDescriptor")
    model = service.client.get(f"{BASE}/deployments/identity").json()["champion"]
    published = service.client.post("/v1/collections/photos/deployments/identity:publish", json={"model": model})
    assert (published.status_code, published.json()["code"]) == (409, "ExternalDescriptor")
    evaluated = service.wait(
        service.client.post("/v1/evaluations", json={"collection": "c", "protocol": "retrieval", "model": "lbp-l2"})
    )
    assert evaluated["problem"]["code"] == "ExternalDescriptor", evaluated
    assert service.client.get(f"{BASE}/findings").status_code in (200, 404)
    assert service.client.get(BASE).json()["face_count"] == PEOPLE * PHOTOS


def test_a_metric_is_learned_measured_published_and_rolled_back(gallery: tuple[Service, Rows, list[str]]) -> None:
    service, rows, subjects = gallery
    faces = {
        face["metadata"]["number"]: face["face_id"]
        for face in service.client.get(f"{BASE}/faces", params={"limit": 1000}).json()["faces"]
    }
    pairs = [(i, i + 1, subjects[i] == subjects[i + 1]) for i in range(100)]
    labels = [
        {"face_a": faces[a], "face_b": faces[b], "task": "identity", "same": same, "by": "me"} for a, b, same in pairs
    ]
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == len(labels)
    before = service.client.get(f"{BASE}/deployments/identity").json()["champion"]
    training = {"collection": "c", "method": "wpca", "dim": 8, "holdout": 0.2}
    job = service.wait(service.client.post("/v1/trainings", json=training), 120)
    assert job["state"] == "succeeded", job["problem"]
    model = job["result"]["model"]
    evaluation = {"collection": "c", "protocol": "retrieval", "model": model}
    measured = service.wait(service.client.post("/v1/evaluations", json=evaluation), 120)
    assert measured["state"] == "succeeded", measured["problem"]
    body = {"model": model, "override": True, "reason": "this test is about the steps, not about the metric"}
    published = service.wait(service.client.post(f"{BASE}/deployments/identity:publish", json=body))
    assert published["state"] == "succeeded", published["problem"]
    assert search(service, rows[0])["model"] == model
    for i in range(0, len(rows), 17):
        subject, distance = find_nearest(service, rows[i])
        assert (subject, distance) == (subjects[i], pytest.approx(0, abs=1e-3))
    job = service.wait(send(service, rows[:1] + 5, "subject\nlater"))
    assert job["result"]["enrolled"] == 1
    assert find_nearest(service, rows[0] + 5)[0] == "later"
    assert service.client.post(f"{BASE}/deployments/identity:rollback").json()["champion"] == before
    service.wait_for_indexes()
    assert find_nearest(service, rows[0] + 5) == ("later", pytest.approx(0, abs=1e-5))


def test_a_method_with_a_dim_can_start_from_one_without(gallery: tuple[Service, Rows, list[str]]) -> None:
    """The default dim is more than the vectors have numbers, and one that is stated is refused."""
    service, _, _ = gallery
    first = service.wait(service.client.post("/v1/trainings", json={"collection": "c", "method": "wccn"}), 120)
    body = {"collection": "c", "method": "ldml", "start_from": first["result"]["model"], "options": {"steps": 20}}
    job = service.wait(service.client.post("/v1/trainings", json=body), 120)
    assert job["state"] == "succeeded", job["problem"]
    request = service.client.get(f"/v1/trainings/{job['result']['training']}").json()["request"]
    assert request["options"]["dim"] == DIM
    refused = service.client.post("/v1/trainings", json=body | {"dim": 4})
    assert (refused.status_code, "leave out dim" in refused.text, "None" in refused.text) == (422, True, False)


def test_a_model_that_few_people_have_trained_has_a_threshold_by_all_of_them(service: Service) -> None:
    """Fewer could be held out at once than a threshold needs."""
    people, photos, strangers = 170, 3, 300
    service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}}).raise_for_status()
    rows, _ = draw_people(people + strangers, photos + 1, DIM)
    drawn = rows.reshape(people + strangers, photos + 1, DIM)
    subjects = [f"p{i // photos}" for i in range(people * photos)]
    service.wait(send(service, drawn[:people, 1:].reshape(-1, DIM), "\n".join(["subject", *subjects])))
    training = {"collection": "c", "method": "wccn", "holdout": 0.2}
    job = service.wait(service.client.post("/v1/trainings", json=training), 120)
    assert job["state"] == "succeeded", job["problem"]
    body = {"model": job["result"]["model"], "override": True, "reason": "this test is about the threshold"}
    assert service.wait(service.client.post(f"{BASE}/deployments/identity:publish", json=body))["state"] == "succeeded"
    service.wait_for_indexes()
    threshold = search(service, drawn[0, 0])["threshold"]
    assert (threshold["enough"], threshold["evidence"]["source"]) == (True, "held-out")
    assert threshold["evidence"]["people"] == people
    decisions = [search(service, person[0])["faces"][0]["decision"] for person in drawn]
    assert decisions[:people].count("match") > 0.9 * people
    assert decisions[people:].count("match") < threshold["high"] * strangers


def test_what_is_refused_has_its_reason_and_the_rest_is_enrolled(service: Service) -> None:
    service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}}).raise_for_status()
    service.client.put(f"{BASE}/subjects/no", json={"consent": False}).raise_for_status()
    rows, _ = draw_people(12, 1, DIM)
    rows[0, 3], rows[1, 0], rows[2], rows[3, 0] = np.nan, np.inf, 0, 1e30
    rows[11] = rows[10]
    table = [
        *({"subject": f"p{i}"} for i in range(4)),
        {"subject": "p4", "role": "staff"},
        {"subject": "x" * 256},
        {"external_image_id": "x" * 1025},
        {"subject": "no"},
        {"source": "not a source"},
        {"subject": "p9", "role": "distractor", "colour": "red"},
        {"subject": "p10"},
        {"subject": "p11"},
    ]
    lines = "\n".join(httpx.Request("POST", "http://x", json=row).content.decode() for row in table)
    job = service.wait(send(service, rows, lines))
    assert job["progress"] == {"done": 2, "total": 12, "failed": 10}
    items = service.client.get(f"/v1/jobs/{job['id']}/items").json()["items"]
    assert {item["number"]: item["reasons"] for item in items} == {
        0: ["NOT_FINITE"], 1: ["NOT_FINITE"], 2: ["ZERO_VECTOR"], 3: ["OUT_OF_RANGE"], 4: ["INVALID_ROLE"],
        5: ["INVALID_SUBJECT"], 6: ["INVALID_EXTERNAL_IMAGE_ID"], 7: ["NO_CONSENT"], 8: ["INVALID_SOURCE"],
        11: ["DUPLICATE"],
    }  # fmt: skip
    subjects = service.client.get(f"{BASE}/subjects").json()["subjects"]
    assert {subject["id"] for subject in subjects} == {"no", "p9", "p10"}, "no person without a face is left"
    [face] = service.client.get(f"{BASE}/faces", params={"role": "distractor"}).json()["faces"]
    assert (face["metadata"], face["subject"]["id"]) == ({"colour": "red"}, "p9")
    again = service.wait(send(service, rows, lines))
    assert (again["result"]["enrolled"], again["result"]["refused"]) == (2, 10)
    assert service.client.get(BASE).json()["face_count"] == 2


@pytest.mark.parametrize(
    ("rows", "table", "detail"),
    [
        (np.zeros((2, 8), np.float32), None, "8 numbers"),
        (np.ones((2, DIM), np.float32), "subject\na", "1 rows and there are 2 vectors"),
        (np.ones((2, DIM), np.float32), '{"subject": "a"}\n{"subject": ', "line 2"),
        (np.ones((2, DIM), np.float32), "subject\na\nb,c", "line 2"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_as_a_whole(service: Service, rows: Any, table: str, detail: str) -> None:
    service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}}).raise_for_status()
    answer = send(service, rows, table)
    problem = service.wait(answer)["problem"] if answer.status_code == 202 else answer.json()
    assert problem["status"] == 422
    assert detail in problem["detail"]
    assert service.client.get(BASE).json()["face_count"] == 0
    assert not list(service.resources.uploads.iterdir())


def test_half_precision_and_a_bare_body_are_taken_and_a_repeat_answers_the_same(service: Service) -> None:
    l2 = {"name": "mine", "dim": 4, "metric": "l2"}
    service.client.put(BASE, json={"descriptor": {"external": l2}}).raise_for_status()
    rows = np.arange(12, dtype=np.float16).reshape(3, 4)
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": "once"}
    answers = [service.client.post(IMPORT, content=to_npy(rows), headers=headers) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert service.wait(answers[0])["result"]["enrolled"] == 3
    nearest = search(service, [4, 5, 6, 8])["faces"][0]["matches"]
    assert [match["distance"] for match in nearest] == [pytest.approx(1), pytest.approx(57), pytest.approx(73)]
    wrong = service.client.post(f"{BASE}/search:by-embedding", json={"vector": [1.0, 2.0]})
    assert (wrong.status_code, wrong.json()["needed"]) == (422, 4)


@pytest.mark.parametrize("lasting_service", ["postgresql"], indirect=True)
def test_an_import_whose_commit_got_no_answer_is_carried_out(service: Service) -> None:
    """The repeat gets the stored answer, and what was uploaded first is still there."""
    service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}}).raise_for_status()
    rows, subjects = draw_people(4, 2, DIM)
    headers = {"Idempotency-Key": "once"}
    with lose_commit("INSERT INTO jobs", ImportEmbeddings.kind) as lost:
        refused = send(service, rows, make_table(subjects), **headers)
    assert lost
    assert refused.status_code == 503
    assert "whether this request was stored is not known" in refused.json()["detail"]
    repeated = send(service, rows, make_table(subjects), **headers)
    assert repeated.headers["Idempotent-Replayed"] == "true"
    job = service.wait(repeated)
    assert job["state"] == "succeeded", job["problem"]
    assert job["result"]["enrolled"] == len(rows)
    assert not list(service.resources.uploads.iterdir())


def test_a_key_sees_and_touches_only_its_collections(service: Service) -> None:
    for name in ("c", "d"):
        body = {"descriptor": {"external": EXTERNAL}}
        service.client.put(f"/v1/collections/{name}", json=body).raise_for_status()
    files = {"vectors": to_npy(np.ones((1, DIM), np.float32))}
    refused = service.client.post(IMPORT, files=files, headers=service.key("operator", "d"))
    assert refused.status_code == 404
    assert service.client.post(IMPORT, files=files, headers=service.key("reader", "c")).status_code == 403
    own = service.client.post(IMPORT, files=files, headers=service.key("operator", "c"))
    assert service.wait(own)["state"] == "succeeded"
    assert service.client.get(own.headers["Location"], headers=service.key("reader", "d")).status_code == 404


@pytest.mark.parametrize("other", [{"dim": 8}, {"metric": "l2"}, {"name": "sface"}])
def test_a_collection_keeps_its_descriptor(service: Service, other: dict[str, Any]) -> None:
    for _ in range(2):
        service.client.put(BASE, json={"descriptor": {"external": EXTERNAL}}).raise_for_status()
    answer = service.client.put(BASE, json={"descriptor": {"external": EXTERNAL | other}})
    assert (answer.status_code, answer.json()["code"]) == (409, "ResourceInUse")
    assert service.client.put(BASE, json={"description": "mine"}).json()["descriptor"] == {"external": EXTERNAL}


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
def test_the_command_makes_the_collection_and_names_what_is_refused(service: Service, tmp_path: Path) -> None:
    rows, subjects = draw_people(3, 2, DIM)
    rows[0] = 0
    vectors, table = tmp_path / "vectors.npy", tmp_path / "people.csv"
    vectors.write_bytes(to_npy(rows))
    table.write_text(make_table(subjects))
    environment = {"LIKENESS_URL": service.url, "LIKENESS_KEY": service.client.headers["Authorization"].split()[1]}
    command = ["import", "c", str(vectors), "--table", str(table), "--made-by", "arcface-r100"]
    for _ in range(2):
        result = CliRunner().invoke(app, command, env=environment)
        assert result.exit_code == 0, result.output
        assert "refused row 0: ZERO_VECTOR" in result.output
    assert service.client.get(BASE).json()["descriptor"] == {"external": EXTERNAL}
    assert service.client.get(BASE).json()["face_count"] == 5
    vectors.write_bytes(to_npy(rows.astype(np.float64)))
    result = CliRunner().invoke(app, command, env=environment)
    assert result.exit_code == 2
    assert "float32" in result.output
