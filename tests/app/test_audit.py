"""The audit log of a running service: who did what, when, on what, and who may read it."""

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import APIRouter
from sqlalchemy import select
from typer.testing import CliRunner

from app.cli.main import app as cli
from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import AuditEntry
from app.deps.audit import UndeclaredAudit, audit_as, check_audited
from app.deps.roles import OPERATOR
from app.resources import Resources
from app.storage.audit_log.drafts import EntryDraft
from tests.app.test_faces import picture
from tests.openapi_checker import openapi_document
from tests.service import Service, serve_api
from tests.two_collections import MINE, OTHER, World, open_world

WAIT_SECONDS = 20


@pytest.fixture(scope="module")
def world(lasting: Resources) -> Iterator[World]:
    with open_world(lasting) as opened:
        yield opened


def wait_for_entries(client: httpx.Client, headers: dict[str, str], **query: Any) -> list[dict[str, Any]]:
    """Return the newest entries that the query names, as soon as there are any."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        answer = client.get("/v1/audit", headers=headers, params=query)
        assert answer.status_code == 200, answer.text
        if answer.json()["entries"]:
            return list(answer.json()["entries"])
        time.sleep(0.05)
    raise AssertionError(f"no entry {query} within {WAIT_SECONDS} s")


def find_entry(world: World, **query: Any) -> dict[str, Any]:
    return wait_for_entries(world.client, world.headers["admin", ()], **query)[0]


def test_an_entry_says_who_did_what_when_and_on_what(world: World) -> None:
    began = time.time()
    face = world.rows[MINE].faces[0]
    assert world.send("GET", f"/v1/collections/{MINE}/faces/{face}/crop", "reader", MINE).status_code == 404
    entry = find_entry(world, action="crop.read")
    with reading(world.resources.database) as session:
        stored = session.get_one(AuditEntry, entry["number"])
        assert began - 1 < stored.at < time.time() + 1
    key_id = entry.pop("key_id")
    assert {name: entry[name] for name in ("address", "collection", "resource", "status")} == {
        "address": "127.0.0.1", "collection": MINE, "resource": f"face:{face}", "status": 404,
    }  # fmt: skip
    listed = world.send("GET", "/v1/keys", "admin").json()["keys"]
    assert [key["name"] for key in listed if key["id"] == key_id] == [f"{MINE} reader"]
    assert find_entry(world, key_id=key_id)["key_id"] == key_id


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "resource"),
    [
        ("POST", "/v1/keys", {"role": "reader", "collections": [MINE]}, "key.create", "key:"),
        ("POST", "/v1/labels", "label", "label.add", None),
        ("POST", "/v1/collections/{MINE}/search:by-embedding", {"vector": [0.0] * 9860}, "search.vector", None),
        (
            "PATCH",
            "/v1/collections/{MINE}/deployments/identity",
            {"default_fpir": 0.02},
            "deployment.change",
            "task:identity",
        ),
        ("POST", "/v1/jobs/{live}:cancel", {}, "job.cancel", "job:{live}"),
        ("POST", "/v1/jobs/{evaluation_job}:cancel", {}, "job.cancel", "job:{evaluation_job}"),
        ("POST", "/v1/trainings", {"collection": MINE, "method": "l2"}, "training.start", "training:"),
        ("POST", "/v1/evaluations", {"collection": MINE}, "evaluation.start", "evaluation:"),
        ("POST", "/v1/models/{model}:archive", {}, "model.archive", "model:"),
        ("POST", "/v1/labels:suggest", {"collection": MINE}, "label.suggest", None),
        ("DELETE", "/v1/labels?by={MINE}-labeller", None, "label.withdraw", None),
        ("DELETE", "/v1/keys/{key}", None, "key.revoke", "key:"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and "/" not in value else "",
)
def test_an_entry_names_the_collection_also_where_the_path_does_not(
    world: World, method: str, path: str, body: Any, action: str, resource: str | None
) -> None:
    rows = world.rows[MINE]
    if body == "label":
        body = {"labels": [{"face_a": rows.faces[0], "face_b": rows.faces[1], "same": True}]}
    request, began = {} if body is None else {"json": body}, time.time()
    answer = world.send(method, path.format(MINE=MINE, **rows.ids), "admin", **request)
    assert answer.is_success, answer.text
    entry = find_entry(world, action=action, collection=MINE, since=began)
    assert entry["status"] == answer.status_code
    assert (entry["resource"] or "").startswith((resource or "").format(**rows.ids))
    assert (entry["resource"] is None) == (resource is None)


@pytest.mark.parametrize(
    ("bound", "query"),
    [((MINE,), ""), ((MINE,), f"?collection={MINE}"), ((), f"?collection={OTHER}&collection={MINE}")],
)
def test_a_verification_is_recorded_under_the_collection_that_answers_it(
    world: World, bound: tuple[str, ...], query: str
) -> None:
    began, photo = time.time(), base64.b64encode(picture()).decode()
    answer = world.send("POST", f"/v1/verify{query}", "reader", *bound, json={"images": [photo, photo]})
    entries = wait_for_entries(world.client, world.headers["admin", ()], action="face.verify", since=began)
    assert [(entry["collection"], entry["status"]) for entry in entries] == [(MINE, answer.status_code)]


def test_what_a_key_may_not_do_is_recorded_and_requests_without_a_key_are_not(world: World) -> None:
    began = time.time()
    assert world.send("DELETE", f"/v1/collections/{OTHER}", "reader").status_code == 403
    assert world.send("DELETE", f"/v1/collections/{OTHER}", "admin", MINE).status_code == 404
    assert world.client.delete(f"/v1/collections/{OTHER}", headers={"x-api-key": "wrong"}).status_code == 401
    assert world.send("PUT", "/v1/tasks/kinship", "reader").status_code == 403
    find_entry(world, action="task.put")
    entries = wait_for_entries(world.client, world.headers["admin", ()], action="collection.delete", since=began)
    assert [(entry["status"], entry["collection"]) for entry in entries] == [(404, OTHER), (403, OTHER)]


def test_a_bound_admin_reads_what_was_done_in_its_collections(world: World) -> None:
    for collection in (MINE, OTHER):
        world.send("PUT", f"/v1/collections/{collection}/subjects/eve", "admin", collection)
    find_entry(world, action="subject.put", collection=OTHER)
    for collection in (MINE, OTHER):
        entries = world.send("GET", "/v1/audit", "admin", collection).json()["entries"]
        assert {entry["collection"] for entry in entries} == {collection}
    everything = world.send("GET", "/v1/audit?limit=1000", "admin").json()["entries"]
    assert {MINE, OTHER} <= {entry["collection"] for entry in everything}
    for role in ("reader", "operator"):
        assert world.send("GET", "/v1/audit", role).status_code == 403


def test_a_subject_is_found_by_its_id_and_its_id_is_stored_nowhere(world: World) -> None:
    subject = "Ada Recognisable, née Byron"
    path = f"/v1/collections/{MINE}/subjects/{subject}"
    assert world.send("PUT", path, "operator").status_code == 201
    assert world.send("DELETE", path, "operator").status_code == 200
    entry = find_entry(world, collection=MINE, subject=subject, action="subject.delete")
    assert entry["resource"].startswith("subject:#")
    assert find_entry(world, collection=MINE, subject=subject, order="oldest")["action"] == "subject.put"
    with reading(world.resources.database) as session:
        rows = session.execute(select(*AuditEntry.__table__.columns)).all()
    assert not [row for row in rows if "Recognisable" in str(row)]
    assert not [path for path in world.resources.audit.iterdir() if b"Recognisable" in path.read_bytes()]
    refused = world.send("GET", f"/v1/audit?subject={subject}", "admin")
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidParameter")


def test_a_path_that_is_no_id_is_stored_as_a_hash(world: World) -> None:
    assert world.send("DELETE", f"/v1/collections/{MINE}/faces/Ada Lovelace", "operator").status_code == 404
    assert find_entry(world, action="face.delete")["resource"].startswith("face:#")
    assert world.send("PATCH", f"/v1/collections/{MINE}/faces/Ada_Lovelace", "operator", json={}).status_code == 404
    assert find_entry(world, action="face.change")["resource"].startswith("face:#")
    began = time.time()
    assert world.send("DELETE", "/v1/collections/Ada Lovelace", "admin").status_code == 422
    assert find_entry(world, action="collection.delete", since=began)["collection"] is None


def test_the_log_is_read_in_pages_in_both_orders(world: World) -> None:
    for number in range(8):
        assert world.send("PUT", f"/v1/collections/{MINE}/subjects/paged-{number}", "admin").status_code in (200, 201)
    find_entry(world, action="subject.put", collection=MINE, subject="paged-7")
    for order in ("oldest", "newest"):
        pages, token = list[list[int]](), None
        while token or not pages:
            query = {"limit": 7, "order": order} | ({"next_token": token} if token else {})
            answer = world.send("GET", "/v1/audit", "admin", params=query | {"action": "subject.put"}).json()
            pages.append([entry["number"] for entry in answer["entries"]])
            token = answer["next_token"]
        numbers = [number for page in pages for number in page]
        assert len(numbers) >= 8
        assert numbers == sorted(set(numbers), reverse=order == "newest")
    assert world.send("GET", f"/v1/audit?since={time.time() + 60}", "admin").json()["entries"] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_searches_are_recorded_only_if_the_setting_says_so(resources: Resources) -> None:
    settings = resources.settings.model_copy(update={"audit_searches": False})
    with open_world(replace(resources, settings=settings)) as world:
        vector = np.zeros(9860).tolist()
        searched = world.send("POST", f"/v1/collections/{MINE}/search:by-embedding", "reader", json={"vector": vector})
        assert searched.status_code == 200
        world.send("PUT", f"/v1/collections/{MINE}/subjects/eve", "admin")
        find_entry(world, action="subject.put")
        assert world.send("GET", "/v1/audit?action=search.vector", "admin").json()["entries"] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_entries_are_written_before_the_service_ends(settings: Settings, resources: Resources) -> None:
    with serve_api(settings) as url, httpx.Client(base_url=url, timeout=60, verify=False) as client:
        service = Service(url, client, resources)
        headers = service.key("admin")
        assert client.put("/v1/collections/a", headers=headers).status_code == 201
    with reading(resources.database) as session:
        assert list(session.scalars(select(AuditEntry.action))) == ["collection.create"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_verifies_the_log_and_names_what_does_not_hold(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_HOME", str(resources.settings.home))
    with writing(resources.database) as session:
        resources.audit_chain.append(session, [EntryDraft.make("key.create") for _ in range(3)])
    holds = CliRunner().invoke(cli, ["audit", "verify"])
    assert (holds.exit_code, holds.output[:24]) == (0, "3 entries hold: 1 to 3, ")
    with writing(resources.database) as session:
        session.get_one(AuditEntry, 2).action = "key.list"
    broken = CliRunner().invoke(cli, ["audit", "verify"])
    assert broken.exit_code == 1
    assert "entry 2 does not hold" in broken.output
    assert CliRunner().invoke(cli, ["audit", "verify", "--after", "2"]).exit_code == 0


def test_a_route_that_changes_something_and_has_no_action_stops_the_start() -> None:
    router = APIRouter()

    @router.post("/v1/things", openapi_extra=OPERATOR)
    def make_thing() -> None:
        """Make a thing."""

    with pytest.raises(UndeclaredAudit, match=r"POST /v1/things does not say what it is audited as"):
        check_audited(router.routes)
    with pytest.raises(ValueError, match=r"noun\.verb"):
        audit_as("make things")


def test_every_operation_that_is_no_plain_read_has_an_action() -> None:
    operations = [
        (method, path, operation)
        for path, item in openapi_document()["paths"].items()
        for method, operation in item.items()
    ]
    assert [(method, path) for method, path, one in operations if method != "get" and "x-audit" not in one] == []
    assert len({one["x-audit"] for _, _, one in operations if "x-audit" in one}) > 40


def test_a_client_cannot_write_its_own_address(world: World) -> None:
    headers = world.headers["admin", ()] | {"x-forwarded-for": "6.6.6.6, evil action=key.revoke"}
    assert world.client.get("/v1/audit", headers=headers, params={"limit": 1, "action": "audit.read"}).is_success
    assert find_entry(world, action="audit.read")["address"] == "127.0.0.1"
