"""Consent and retention: who is found, enrolled, learned from and erased."""

import base64
import io
import json
import pydoc
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.config import Settings
from app.search.response import collect_included
from tests.app.test_faces import BASE, enrol, picture, wait_until
from tests.databases import remove_test_data
from tests.service import Service, run_service
from tests.workers.test_erase import context
from workers.cleanup.expired_subjects import erase_expired_subjects

ADA = f"{BASE}/subjects/ada"


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


@pytest.fixture
def faces(service: Service) -> dict[str, str]:
    """A collection with two faces of ada and one of bob: name -> face id. All of them can be found."""
    service.client.put(BASE).raise_for_status()
    answers = {
        name: enrol(service.client, picture(n), subject=name[:3]) for n, name in enumerate(("ada", "ada2", "bob"))
    }
    ids = {name: answer.raise_for_status().json()["face_records"][0]["face_id"] for name, answer in answers.items()}
    wait_until(lambda: set(find(service.client)) == set(ids.values()))
    return ids


def search(client: httpx.Client, **params: str) -> dict[str, Any]:
    photo = {"image": base64.b64encode(picture(0)).decode()}
    answer: dict[str, Any] = client.post(f"{BASE}/search", json=photo, params={"aligned": True} | params).json()
    return answer


def find(client: httpx.Client, headers: dict[str, str] | None = None) -> list[str]:
    """The ids of the faces that a search by photo returns."""
    params = {"aligned": True, "group_by": "face"}
    photo = {"image": base64.b64encode(picture(0)).decode()}
    answer = client.post(f"{BASE}/search", json=photo, params=params | {"limit": 10}, headers=headers)
    return [match["face_id"] for match in answer.raise_for_status().json()["faces"][0]["matches"]]


def verify(client: httpx.Client, **params: str) -> int:
    params = {"collection": "staff", "aligned": "true"} | params
    return client.post("/v1/verify", files={"file": picture(0)}, params=params).status_code


def test_a_person_who_has_refused_consent_is_neither_found_nor_enrolled(
    service: Service, faces: dict[str, str]
) -> None:
    client = service.client
    with_key = {"Idempotency-Key": "a-search"}
    assert set(find(client, with_key)) == set(faces.values())
    client.patch(ADA, json={"consent": False}).raise_for_status()
    assert find(client, with_key) == [faces["bob"]], "a repeated search is carried out anew"
    assert client.post(f"{BASE}/faces/{faces['ada']}/search").status_code == 404
    assert (verify(client, subject="ada"), verify(client, face_id=faces["ada"]), verify(client, subject="bob")) == (
        404,
        404,
        200,
    )
    stored = set(service.resources.blobs.names("staff"))
    refused = enrol(client, picture(7), subject="ada")
    assert set(service.resources.blobs.names("staff")) == stored, "nothing of a refused photo is kept"
    assert (refused.status_code, refused.json()["code"], refused.json()["reason"]) == (
        409,
        "EnrolmentNotAllowed",
        "NO_CONSENT",
    )
    renamed = client.patch(f"{BASE}/faces/{faces['bob']}", json={"subject": "ada"})
    assert (renamed.status_code, renamed.json()["code"]) == (409, "EnrolmentNotAllowed")
    for merged, kept in (("bob", "ada"), ("ada", "bob")):
        answer = client.post(f"{BASE}/subjects/{merged}:merge", json={"into": kept})
        assert (answer.status_code, answer.json()["reason"]) == (409, "NO_CONSENT")
    assert enrol(client, picture(0), subject="ada").status_code == 200, "a face that is stored is answered as it is"
    client.patch(ADA, json={"consent": None}).raise_for_status()
    assert set(find(client)) == set(faces.values())
    assert enrol(client, picture(7), subject="ada").status_code == 201


def forget_ada(client: httpx.Client) -> None:
    client.patch(ADA, json={"consent": False}).raise_for_status()


def end_retention_of_ada(client: httpx.Client) -> None:
    client.patch(ADA, json={"retain_until": "2020-01-01T00:00:00Z"}).raise_for_status()


def merge_ada(client: httpx.Client) -> None:
    client.put(f"{BASE}/subjects/countess", json={}).raise_for_status()
    client.post(f"{ADA}:merge", json={"into": "countess"}).raise_for_status()


def delete_collection(client: httpx.Client) -> None:
    client.delete(BASE).raise_for_status()


@pytest.mark.parametrize("change", [forget_ada, end_retention_of_ada, merge_ada, delete_collection])
@pytest.mark.parametrize(
    "slow",
    [
        "app.search.context.SearchContext.find_faces",
        "app.search.enrolled_faces.filter_faces",
        "app.serving.deployments.ServedModel.search",
        "app.search.service.collect_included",
    ],
)
def test_a_search_that_was_under_way_does_not_name_somebody_as_before_the_change(
    service: Service,
    faces: dict[str, str],
    change: Callable[[httpx.Client], None],
    slow: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A photo of forty faces took three seconds, and the answer named by what was known before them."""
    assert {match["subject"]["id"] for match in search(service.client)["faces"][0]["matches"]} == {"ada", "bob"}
    work, changes = pydoc.locate(slow), list[None]()

    def work_slowly(*args: Any, **options: Any) -> Any:
        done = work(*args, **options)  # type: ignore[operator]
        if not changes:
            changes.append(change(service.client))
            time.sleep(0.02)
        return done

    with monkeypatch.context() as patched:
        patched.setattr(slow, work_slowly)
        answer = search(service.client, filter=json.dumps({"role": "gallery"}), include="crop")
    assert len(changes) == 1, answer
    if change is delete_collection:
        assert answer["status"] == 404
    else:
        [face] = answer["faces"]
        assert "ada" not in {match["subject"]["id"] for match in face["matches"]}
        assert face["decision"] != "match" or face["subject"]["id"] != "ada"
        assert all(match["crop"] for match in face["matches"])


def test_matches_that_come_while_others_are_explained_are_explained_too(
    service: Service, faces: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = list[int]()

    def explain(*args: Any) -> Any:
        collected = collect_included(*args)
        rounds.append(len(collected[0].face_ids))
        if len(rounds) == 1:
            enrol(service.client, picture(5), subject="eve").raise_for_status()
            wait_until(lambda: len(find(service.client)) == len(faces) + 1)
        return collected

    with monkeypatch.context() as patched:
        patched.setattr("app.search.service.collect_included", explain)
        [face] = search(service.client, include="explanation")["faces"]
    assert rounds == [2, 3]
    assert {match["subject"]["id"] for match in face["matches"]} == {"ada", "bob", "eve"}
    assert all(match["explanation"] for match in face["matches"])


def test_a_search_by_a_face_whose_person_refuses_while_it_is_explained_is_not_answered(
    service: Service, faces: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(*args: Any) -> Any:
        forget_ada(service.client)
        return collect_included(*args)

    path = f"{BASE}/faces/{faces['ada']}/search"
    found = service.client.post(path, params={"include": "explanation"}).raise_for_status().json()
    assert all(match["explanation"] for match in found["faces"][0]["matches"])
    with monkeypatch.context() as patched:
        patched.setattr("app.search.service.collect_included", explain)
        assert service.client.post(path, params={"include": "explanation"}).status_code == 404


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"consent": False}, "NO_CONSENT"), ({"retain_until": "2020-01-01T00:00:00Z"}, "RETENTION_ENDED")],
)
@pytest.mark.parametrize("subject", [None, "bob", "eve"])
def test_no_other_name_makes_a_refused_face_findable(
    service: Service, faces: dict[str, str], change: dict[str, Any], reason: str, subject: str | None
) -> None:
    client, face = service.client, f"{BASE}/faces/{faces['ada']}"
    client.patch(ADA, json=change).raise_for_status()
    refused = client.patch(face, json={"subject": subject, "role": "distractor"})
    assert (refused.status_code, refused.json()["code"], refused.json().get("reason")) == (
        409,
        "EnrolmentNotAllowed",
        reason,
    )
    assert "delete the face, or change the subject first" in refused.json()["detail"]
    shown = client.get(face).json()
    assert (shown["subject"]["id"], shown["role"]) == ("ada", "gallery")
    assert find(client) == [faces["bob"]]
    assert client.get(f"{BASE}/subjects/eve").status_code == 404
    client.patch(ADA, json={"consent": None, "retain_until": None}).raise_for_status()
    assert client.patch(face, json={"subject": subject}).status_code == 200, "a wrong name can be corrected"


def test_a_face_of_somebody_with_an_end_of_retention_is_not_given_to_nobody(
    service: Service, faces: dict[str, str]
) -> None:
    client, face = service.client, f"{BASE}/faces/{faces['ada']}"
    client.patch(ADA, json={"retain_until": "2090-01-01T00:00:00Z"}).raise_for_status()
    refused = client.patch(face, json={"subject": None})
    assert (refused.status_code, refused.json()["code"], refused.json()["reason"]) == (
        409, "EnrolmentNotAllowed", "RETENTION_LIMITED",
    )  # fmt: skip
    assert client.get(face).json()["subject"]["id"] == "ada"
    assert client.patch(face, json={"subject": "bob"}).status_code == 200, "a wrong name can be corrected"
    assert client.patch(face, json={"subject": None}).status_code == 200, "bob has no retain_until"
    assert client.patch(face, json={"subject": None}).status_code == 200


def test_a_refusal_given_since_the_snapshot_holds_in_the_restored_collection(
    service: Service, faces: dict[str, str]
) -> None:
    client = service.client
    for name in ("cleo", "dan"):
        client.put(f"{BASE}/subjects/{name}", json={"retain_until": "2090-01-01T00:00:00Z"}).raise_for_status()
    taken = client.post("/v1/snapshots", json={"collection": "staff"})
    assert service.wait(taken)["state"] == "succeeded"
    client.patch(ADA, json={"consent": False}).raise_for_status()
    client.patch(f"{BASE}/subjects/bob", json={"consent": True, "retain_until": "2090-01-01T00:00:00Z"})
    client.patch(f"{BASE}/subjects/cleo", json={"retain_until": "2080-01-01T00:00:00Z"})
    client.patch(f"{BASE}/subjects/dan", json={"retain_until": None})
    job = service.wait(client.post(f"/v1/snapshots/{taken.json()['snapshot']}:restore", json={"name": "back"}))
    assert job["state"] == "succeeded", job["problem"]
    listed = client.get("/v1/collections/back/subjects").json()["subjects"]
    assert {s["id"]: (s["consent"], s["retain_until"]) for s in listed} == {
        "ada": (False, None),
        "bob": (None, "2090-01-01T00:00:00Z"),
        "cleo": (None, "2080-01-01T00:00:00Z"),
        "dan": (None, "2090-01-01T00:00:00Z"),
    }
    service.wait_for_indexes()
    photo = {"image": base64.b64encode(picture(0)).decode()}
    answer = client.post("/v1/collections/back/search", json=photo, params={"aligned": True, "limit": 10})
    assert [match["subject"]["id"] for match in answer.json()["faces"][0]["matches"]] == ["bob"]
    client.delete("/v1/collections/back").raise_for_status()
    client.delete(f"/v1/snapshots/{taken.json()['snapshot']}").raise_for_status()


def test_an_expired_person_is_not_found_from_that_second_on_and_then_erased(
    service: Service, faces: dict[str, str]
) -> None:
    client = service.client
    ends = datetime.now(UTC) + timedelta(seconds=1)
    client.patch(ADA, json={"retain_until": ends.isoformat()}).raise_for_status()
    assert erase_expired_subjects(context(service.resources)) == 0, "not before its time"
    wait_until(lambda: datetime.now(UTC) > ends)
    assert find(client) == [faces["bob"]]
    refused = enrol(client, picture(7), subject="ada").json()
    assert (refused["code"], refused["reason"]) == ("EnrolmentNotAllowed", "RETENTION_ENDED")
    merged = client.post(f"{BASE}/subjects/bob:merge", json={"into": "ada"})
    assert (merged.status_code, merged.json()["reason"]) == (409, "RETENTION_ENDED")
    assert erase_expired_subjects(context(service.resources)) == 1
    [entry] = client.get("/v1/audit?action=subject.expire&collection=staff&subject=ada").json()["entries"]
    assert (entry["key_id"], entry["status"]) == (None, None), "nobody asked for it"
    assert client.get(ADA).status_code == 404
    assert [face["face_id"] for face in client.get(f"{BASE}/faces").json()["faces"]] == [faces["bob"]]
    assert erase_expired_subjects(context(service.resources)) == 0


def test_more_time_keeps_a_person(service: Service, faces: dict[str, str]) -> None:
    client = service.client
    client.patch(ADA, json={"retain_until": "2020-01-01T00:00:00Z"}).raise_for_status()
    assert find(client) == [faces["bob"]]
    client.patch(ADA, json={"retain_until": None}).raise_for_status()
    assert erase_expired_subjects(context(service.resources)) == 0
    assert set(find(client)) == set(faces.values())


def test_recorded_consent_can_be_required(settings: Settings) -> None:
    with run_service(settings.model_copy(update={"require_consent": True})) as service:
        client = service.client
        client.put(BASE).raise_for_status()
        assert enrol(client, picture(0), subject="ada").json()["reason"] == "NO_CONSENT"
        assert client.get(ADA).status_code == 404, "a refused face creates nobody"
        [nameless] = enrol(client, picture(1)).raise_for_status().json()["face_records"]
        renamed = client.patch(f"{BASE}/faces/{nameless['face_id']}", json={"subject": "ada"})
        assert renamed.json()["reason"] == "NO_CONSENT"
        client.put(ADA, json={"consent": True}).raise_for_status()
        assert enrol(client, picture(0), subject="ada").status_code == 201


def test_an_import_says_whom_it_may_not_enrol(service: Service, faces: dict[str, str]) -> None:
    client = service.client
    client.patch(ADA, json={"consent": False}).raise_for_status()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ada/new.png", picture(7))
        archive.writestr("bob/new.png", picture(8))
    job = service.wait(client.post(f"{BASE}:import", params={"aligned": True}, content=packed.getvalue()))
    items = client.get(f"/v1/jobs/{job['id']}/items").raise_for_status().json()["items"]
    assert {item["name"]: item.get("reasons") for item in items if item["state"] == "failed"} == {
        "ada/new.png": ["NO_CONSENT"]
    }
    assert job["progress"]["done"] == 1
