"""Keys: secrets are shown once, a revoked or expired key is refused at once, and an admin's key always remains."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, select, update
from typer.testing import CliRunner

from app.access import keys
from app.access.key_cache import KeyCache
from app.cli.main import app as cli
from app.cli.server.preparation import create_first_key
from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import AuditEntry, AuditHead, Collection, KeptSnapshot, Key, StoredResponse, now
from app.deps.caller import Caller
from app.errors import Conflict
from app.resources import Resources, open_resources
from app.storage.audit_log.verification import verify_chain
from app.storage.snapshot_folders import MANIFEST, locate_snapshot
from tests.databases import migrate
from tests.service import serve_api
from tests.two_collections import MINE, World, open_world


@pytest.fixture(scope="module")
def world(lasting: Resources) -> Iterator[World]:
    with open_world(lasting) as opened:
        yield opened


def test_a_revoked_key_is_refused_at_once_although_it_was_just_used(world: World) -> None:
    for _ in range(20):
        made = world.send("POST", "/v1/keys", "admin", json={"role": "reader"}).json()
        headers = {"x-api-key": made["key"]}
        assert world.client.get("/v1/collections", headers=headers).status_code == 200
        assert world.send("DELETE", f"/v1/keys/{made['id']}", "admin").status_code == 204
        assert world.client.get("/v1/collections", headers=headers).status_code == 401


def test_another_process_refuses_a_revoked_key_within_a_second(world: World) -> None:
    made = world.send("POST", "/v1/keys", "admin", json={"role": "reader"}).json()
    slow = world.resources.settings.model_copy(update={"poll_seconds": 60.0})
    headers = {"x-api-key": made["key"]}
    with serve_api(slow) as url, httpx.Client(base_url=url, headers=headers, verify=False) as other_process:
        assert other_process.get("/v1/collections").status_code == 200
        assert world.send("DELETE", f"/v1/keys/{made['id']}", "admin").status_code == 204
        until = time.monotonic() + 1.2
        while other_process.get("/v1/collections").status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_request_that_waited_for_a_lock_is_not_carried_out_after_its_key_was_revoked(world: World) -> None:
    """A key that was revoked meanwhile made another admin's key 1.6 s later, and changed subjects after 5.7 s."""
    made = world.send("POST", "/v1/keys", "admin", json={"role": "admin"}).json()
    headers, base = {"x-api-key": made["key"]}, "/v1/collections/waiting"
    for path in (base, f"{base}/subjects/ada"):
        world.send("PUT", path, "admin").raise_for_status()

    def send(method: str, address: str, **body: Any) -> int:
        return world.client.request(method, address, headers=headers, **body).status_code

    with ThreadPoolExecutor(1) as pool:
        with writing(world.resources.database) as session:
            session.execute(update(Collection).where(Collection.id == "waiting").values(change=Collection.change))
            session.execute(update(Key).where(Key.id == made["id"]).values(revoked_at=now()))
            status = pool.submit(send, "PATCH", f"{base}/subjects/ada", json={"external_id": "late"})
            time.sleep(1.0)
        assert status.result() == 401
    assert world.send("GET", f"{base}/subjects/ada", "admin").json()["external_id"] == "ada"


def test_a_key_that_is_revoked_meanwhile_deletes_no_snapshot(world: World) -> None:
    """It was answered 401, and the files were gone, of a snapshot that was listed as ready."""
    made = world.send("POST", "/v1/keys", "admin", json={"role": "admin"}).json()
    database, path = world.resources.database, "/v1/snapshots/waiting"
    folder = locate_snapshot(world.resources.settings.home, "waiting")
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    with writing(database) as session:
        session.add(KeptSnapshot(id="waiting", finished_at=now()))
    with ThreadPoolExecutor(1) as pool:
        with writing(database) as session:
            session.execute(update(KeptSnapshot).where(KeptSnapshot.id == "waiting").values(faces=1))
            session.execute(update(Key).where(Key.id == made["id"]).values(revoked_at=now()))
            answer = pool.submit(world.client.delete, path, headers={"x-api-key": made["key"]})
            time.sleep(1.0)
        assert answer.result().status_code == 401
    assert (folder / MANIFEST).exists()
    assert world.send("GET", path, "admin").json()["state"] == "ready"
    assert world.send("DELETE", path, "admin").status_code == 204
    assert not folder.exists()
    assert world.send("GET", path, "admin").status_code == 404


@pytest.mark.parametrize("ended", ["rotated", "revoked"])
@pytest.mark.parametrize("method", ["rotate", "revoke"])
def test_a_secret_that_has_ended_meanwhile_changes_its_own_key_no_more(world: World, method: str, ended: str) -> None:
    """A thief took the key from its owner, who had just ended the stolen secret."""
    made = make_key(world, role="admin")
    headers, path = {"x-api-key": made["key"]}, f"/v1/keys/{made['id']}"

    def send() -> int:
        if method == "rotate":
            return world.client.post(f"{path}:rotate", headers=headers, json={"overlap_seconds": 0}).status_code
        return world.client.delete(path, headers=headers).status_code

    with ThreadPoolExecutor(1) as pool:
        with writing(world.resources.database) as session:
            _, secret = keys.rotate_key(session, made["id"], 0.0)
            if ended == "revoked":
                keys.revoke_key(session, made["id"])
            status = pool.submit(send)
            time.sleep(1.0)
        assert status.result() == 401
    assert is_accepted(world.client, secret) == (ended == "rotated")


def test_a_key_may_revoke_itself(world: World) -> None:
    made = world.send("POST", "/v1/keys", "admin", json={"role": "admin"}).json()
    headers = {"x-api-key": made["key"]}
    assert world.client.delete(f"/v1/keys/{made['id']}", headers=headers).status_code == 204
    assert world.client.get("/v1/collections", headers=headers).status_code == 401


def test_a_caller_that_was_looked_up_before_a_revocation_is_not_stored_after_it() -> None:
    cache, caller = KeyCache(seconds=60), Caller("k", "reader")
    store = cache.prepare_entry("digest")
    cache.clear()
    store(caller)
    assert cache.find("digest") is None
    cache.prepare_entry("digest")(caller)
    assert cache.find("digest") == caller


def test_the_last_admin_key_that_is_bound_to_no_collection_cannot_be_revoked(world: World) -> None:
    listed = world.send("GET", "/v1/keys", "admin").json()["keys"]
    admins = [
        key["id"] for key in listed if key["role"] == "admin" and not key["collections"] and not key["revoked_at"]
    ]
    last = world.headers["admin", ()]
    for key_id in admins[1:]:
        assert world.send("DELETE", f"/v1/keys/{key_id}", "admin").status_code == 204
    refused = world.client.delete(f"/v1/keys/{admins[0]}", headers=last)
    assert (refused.status_code, refused.json()["code"]) == (409, "ResourceInUse")
    assert "make another one" in refused.json()["detail"]
    made = world.send("POST", "/v1/keys", "admin", json={"role": "admin"}).json()
    assert world.client.delete(f"/v1/keys/{admins[0]}", headers=last).status_code == 204
    world.headers["admin", ()] = {"x-api-key": made["key"]}
    assert world.client.get("/v1/keys", headers=last).status_code == 401


def test_of_two_admins_that_revoke_each_other_at_once_one_remains(resources: Resources) -> None:
    with writing(resources.database) as session:
        ids = [keys.create_key(session, "admin")[0].id for _ in range(2)]
    together = Barrier(2)

    def revoke(key_id: str) -> bool:
        together.wait()
        try:
            with writing(resources.database) as session:
                keys.revoke_key(session, key_id)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(revoke, ids)) == [False, True]
    with reading(resources.database) as session:
        assert len(keys.list_lasting_admins(session)) == 1


def test_an_answer_that_holds_a_secret_is_neither_stored_nor_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    headers = {**world.headers["admin", ()], "Idempotency-Key": "make-a-key"}
    body = {"role": "admin", "name": "by mistake twice"}
    first = world.client.post("/v1/keys", headers=headers, json=body)
    assert first.status_code == 201
    secret = first.json()["key"]
    with reading(world.resources.database) as session:
        stored = session.scalars(select(StoredResponse).order_by(StoredResponse.created_at.desc())).first()
    assert stored is not None
    assert json.loads(stored.body) == {name: value for name, value in first.json().items() if name != "key"}
    if world.resources.database.dialect.name == "sqlite":
        for path in world.resources.settings.home.glob("likeness.sqlite*"):
            assert secret.encode() not in path.read_bytes(), path.name
    repeated = world.client.post("/v1/keys", headers=headers, json=body)
    assert (repeated.status_code, repeated.json()["code"]) == (409, "SecretNotStored")
    assert repeated.json()["key_id"] == first.json()["id"]
    assert secret not in repeated.text
    listed = world.send("GET", "/v1/keys", "admin").json()["keys"]
    assert [key["name"] for key in listed].count("by mistake twice") == 1
    assert world.client.get("/v1/jobs/none", headers={"x-api-key": secret}).status_code == 404
    assert secret not in caplog.text
    other = world.client.post("/v1/keys", headers=headers, json=body | {"name": "another"})
    assert (other.status_code, other.json()["code"]) == (422, "IdempotencyKeyReused")


def test_a_start_prints_an_admin_key_only_if_no_working_one_is_bound_to_no_collection(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    with open_resources(settings) as resources:
        assert create_first_key(settings)
        assert create_first_key(settings) is None
        with writing(resources.database) as session:
            session.execute(update(Key).values(revoked_at=now()))
            keys.create_key(session, "admin", "bound", ("staff",))
        assert create_first_key(settings)
        assert create_first_key(settings) is None
        with reading(resources.database) as session:
            entries = session.execute(select(AuditEntry.action, AuditEntry.resource)).all()
            made = select(Key.id).where(Key.name == "first start").order_by(Key.id)
            assert entries == [("key.create", f"key:{key_id}") for key_id in session.scalars(made)]


def test_two_that_start_at_once_create_one_first_key(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    with open_resources(settings) as resources, ThreadPoolExecutor(2) as pool:
        at_once = Barrier(2)

        def create(_: int) -> str | None:
            at_once.wait()
            return create_first_key(settings)

        for _ in range(10):
            assert list(pool.map(create, range(2))).count(None) == 1
            with writing(resources.database) as session:
                for table in (AuditEntry, AuditHead, Key):
                    session.execute(delete(table))


def make_key(world: World, **body: Any) -> dict[str, Any]:
    answer = world.send("POST", "/v1/keys", "admin", json={"role": "reader"} | body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def is_accepted(client: httpx.Client, secret: str) -> bool:
    return client.get("/v1/collections", headers={"x-api-key": secret}).status_code == 200


def test_a_key_is_refused_from_the_second_of_its_expiry_on_in_all_processes(world: World) -> None:
    slow = world.resources.settings.model_copy(update={"poll_seconds": 60.0})
    with serve_api(slow) as url, httpx.Client(base_url=url, verify=False) as other_process:
        ends = now() + 1.5
        made = make_key(world, expires_at=ends)
        assert made["expires_at"] == pytest.approx(ends)
        for client in (world.client, other_process):
            assert is_accepted(client, made["key"]) or now() > ends
        while now() < ends:
            time.sleep(0.01)
        assert not is_accepted(world.client, made["key"])
        assert not is_accepted(other_process, made["key"]), "although it has just looked the key up"


def test_a_key_cannot_be_made_with_an_expiry_that_has_passed(world: World) -> None:
    refused = world.send("POST", "/v1/keys", "admin", json={"role": "reader", "expires_at": now() - 1})
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidParameter")


def test_a_cached_caller_is_not_used_after_its_expiry() -> None:
    cache = KeyCache(seconds=60)
    cache.prepare_entry("lasts")(Caller("k", "reader", valid_until=now() + 60))
    cache.prepare_entry("expired")(Caller("k", "reader", valid_until=now() - 0.001))
    assert cache.find("lasts") is not None
    assert cache.find("expired") is None


def test_a_rotated_key_keeps_its_id_and_the_old_secret_works_for_the_overlap(world: World) -> None:
    made = make_key(world, name="front desk", collections=[MINE])
    rotated = world.send("POST", f"/v1/keys/{made['id']}:rotate", "admin", json={"overlap_seconds": 1.5})
    assert rotated.status_code == 200
    second = rotated.json()
    assert {name: second[name] for name in ("id", "name", "collections", "created_at")} == {
        name: made[name] for name in ("id", "name", "collections", "created_at")
    }
    assert second["key"] != made["key"]
    assert is_accepted(world.client, made["key"]) or now() > second["previous_until"]
    assert is_accepted(world.client, second["key"])
    while now() < second["previous_until"]:
        time.sleep(0.01)
    assert not is_accepted(world.client, made["key"]), "although it was just used"
    assert is_accepted(world.client, second["key"])


def test_a_rotation_without_overlap_and_a_second_rotation_end_older_secrets_at_once(world: World) -> None:
    secrets = [(made := make_key(world))["key"]]
    for overlap in (3600, 3600, 0):
        answer = world.send("POST", f"/v1/keys/{made['id']}:rotate", "admin", json={"overlap_seconds": overlap})
        secrets.append(answer.json()["key"])
        accepted = [is_accepted(world.client, secret) for secret in secrets]
        assert accepted[-2:] == [overlap > 0, True]
        assert not any(accepted[:-2])
    assert world.send("DELETE", f"/v1/keys/{made['id']}", "admin").status_code == 204
    assert not is_accepted(world.client, secrets[-1])
    refused = world.send("POST", f"/v1/keys/{made['id']}:rotate", "admin", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "ResourceInUse")


def test_the_secret_of_a_rotation_is_not_stored_for_its_idempotency_key(world: World) -> None:
    made = make_key(world)
    headers = world.headers["admin", ()] | {"Idempotency-Key": f"rotate-{made['id']}"}
    first = world.client.post(f"/v1/keys/{made['id']}:rotate", headers=headers, json={})
    again = world.client.post(f"/v1/keys/{made['id']}:rotate", headers=headers, json={})
    assert (first.status_code, again.status_code, again.json()["code"]) == (200, 409, "SecretNotStored")
    assert is_accepted(world.client, first.json()["key"])


def test_a_key_that_expires_makes_and_rotates_no_key_that_lasts_longer(world: World) -> None:
    ends = now() + 60
    limited = {"x-api-key": make_key(world, role="admin", expires_at=ends)["key"]}
    lasting = make_key(world, role="admin")
    for answer in (
        world.client.post("/v1/keys", headers=limited, json={"role": "reader"}),
        world.client.post("/v1/keys", headers=limited, json={"role": "reader", "expires_at": ends + 1}),
        world.client.post(f"/v1/keys/{lasting['id']}:rotate", headers=limited, json={}),
    ):
        assert (answer.status_code, "expire by then" in answer.json()["detail"]) == (403, True)
    body = {"role": "reader", "expires_at": ends}
    assert world.client.post("/v1/keys", headers=limited, json=body).status_code == 201
    bound = world.send("POST", f"/v1/keys/{lasting['id']}:rotate", "admin", MINE, json={})
    assert bound.status_code == 404, "a bound admin does not see it"


def test_an_admin_key_that_expires_does_not_count_as_the_last_one(resources: Resources) -> None:
    with writing(resources.database) as session:
        lasting = keys.create_key(session, "admin")[0].id
        expiring = keys.create_key(session, "admin", expires_at=now() + 3600)[0].id
    with writing(resources.database) as session, pytest.raises(Conflict):
        keys.revoke_key(session, lasting)
    with writing(resources.database) as session:
        keys.revoke_key(session, expiring)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_keys_are_made_listed_rotated_and_revoked_by_commands(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_HOME", str(resources.settings.home))

    def run(*arguments: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["keys", *arguments])
        assert result.exit_code == exit_code, result.output
        return result.output.strip()

    def find(secret: str) -> Caller | None:
        with reading(resources.database) as session:
            return keys.find_caller(session, secret)

    admin = find(run("create", "--role", "admin"))
    secret = run("create", "--name", "front desk", "--collection", MINE, "--days", "2")
    caller = find(secret)
    assert admin is not None
    assert caller is not None
    assert caller.valid_until == pytest.approx(now() + 2 * 86_400, abs=60)
    [_, row] = run("list").splitlines()
    assert row.startswith(f"{caller.key_id} reader   {MINE} expires ")
    assert row.endswith("front desk")
    assert find(run("rotate", caller.key_id, "--overlap", "0")) == caller
    assert find(secret) is None
    run("revoke", caller.key_id)
    assert "revoked" in run("list")
    assert "last admin" in " ".join(run("revoke", admin.key_id, exit_code=2).split())
    run("rotate", "unknown", exit_code=2)
    with reading(resources.database) as session:
        entries = session.execute(select(AuditEntry.action, AuditEntry.collection_id).order_by(AuditEntry.number)).all()
    assert entries == [
        ("key.create", None), ("key.create", MINE), ("key.rotate", MINE), ("key.revoke", MINE),
    ]  # fmt: skip
    assert verify_chain(resources.database, resources.audit_chain).faults == []
