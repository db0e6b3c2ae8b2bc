"""A key that is bound to collections sees and touches nothing of others."""

import re
from collections.abc import Iterator
from dataclasses import replace

import anyio
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import select

from app.access.middleware import AuthMiddleware
from app.access.request_checks import RequestChecks
from app.db.session import reading, writing
from app.db.tables import Deployment, Job, Key, ModelRecord, Task, Training
from app.deps.roles import READER
from app.deps.scopes import (
    COLLECTION,
    EVALUATION,
    JOB,
    KEY,
    MODEL,
    ROWS,
    TRAINING,
    UndeclaredScope,
    check_declarations,
)
from app.queue.jobs import enqueue
from app.queue.messages import Train
from app.resources import Resources
from tests.rows import make_model
from tests.two_collections import MINE, OTHER, World, open_world

ABSENT = "0006423bd5c1e7a91f2b3c4d5"
"""An id that nothing has."""


@pytest.fixture(scope="module")
def world(lasting: Resources) -> Iterator[World]:
    with open_world(lasting) as opened:
        yield opened


def find(world: World, kind: str, row_id: str):  # type: ignore[no-untyped-def]
    with reading(world.resources.database) as session:
        return session.get({"job": Job, "model": ModelRecord, "key": Key}[kind], row_id)


def test_a_bound_admin_makes_only_keys_that_are_bound_to_some_of_its_collections(world: World) -> None:
    for collections in ([], [OTHER], [MINE, OTHER]):
        refused = world.send("POST", "/v1/keys", "admin", MINE, json={"role": "reader", "collections": collections})
        assert (refused.status_code, refused.json()["code"]) == (403, "AccessDenied")
        assert OTHER not in refused.text
    made = world.send("POST", "/v1/keys", "admin", MINE, json={"role": "admin", "collections": [MINE]})
    assert (made.status_code, made.json()["collections"]) == (201, [MINE])
    assert world.send("POST", "/v1/keys", "admin", json={"role": "reader"}).status_code == 201


def test_a_bound_admin_lists_only_the_keys_of_its_collections(world: World) -> None:
    listed = world.send("GET", "/v1/keys", "admin", MINE).json()["keys"]
    assert {tuple(key["collections"]) for key in listed} == {(MINE,)}
    everything = world.send("GET", "/v1/keys", "admin").json()["keys"]
    assert {(), (MINE,), (OTHER,)} <= {tuple(key["collections"]) for key in everything}


def test_a_bound_admin_cannot_revoke_keys_of_others(world: World) -> None:
    with reading(world.resources.database) as session:
        others = [key.id for key in session.scalars(select(Key)) if key.collections != [MINE]]
    assert others
    for key_id in others:
        refused = world.send("DELETE", f"/v1/keys/{key_id}", "admin", MINE)
        assert (refused.status_code, refused.json()["detail"]) == (404, f"no key {key_id!r}")
        assert find(world, "key", key_id).revoked_at is None
    made = world.send("POST", "/v1/keys", "admin", MINE, json={"role": "reader", "collections": [MINE]}).json()
    assert world.send("DELETE", f"/v1/keys/{made['id']}", "admin", MINE).status_code == 204


def test_a_bound_admin_cannot_archive_models_of_others(world: World) -> None:
    model = world.rows[OTHER].ids["model"]
    refused = world.send("POST", f"/v1/models/{model}:archive", "admin", MINE)
    assert (refused.status_code, refused.json()["detail"]) == (404, f"no model {model!r}")
    assert find(world, "model", model).archived_at is None


def test_a_bound_admin_cannot_change_tasks(world: World) -> None:
    path = "/v1/tasks/expression"
    assert world.send("PUT", path, "admin", MINE, json={"enabled": True}).status_code == 403
    with reading(world.resources.database) as session:
        assert not session.get_one(Task, "expression").enabled
    assert world.send("GET", path, "reader", MINE).status_code == 200


def test_a_bound_reader_sees_no_jobs_of_others_and_none_of_their_file_names(world: World) -> None:
    rows = world.rows[OTHER]
    for name in ("job", "live", "evaluation_job"):
        for path in (f"/v1/jobs/{rows.ids[name]}", f"/v1/jobs/{rows.ids[name]}/items"):
            hidden = world.send("GET", path, "reader", MINE)
            assert (hidden.status_code, hidden.json()["detail"]) == (404, f"no job {rows.ids[name]!r}")
    listed = world.send("GET", "/v1/jobs", "reader", MINE)
    assert {job["id"] for job in listed.json()["jobs"]} == {
        world.rows[MINE].ids[name] for name in ("job", "live", "evaluation_job")
    }
    items = world.send("GET", f"/v1/jobs/{world.rows[MINE].ids['job']}/items", "reader", MINE).json()["items"]
    assert [item["name"] for item in items] == [world.rows[MINE].file]


def test_a_bound_reader_cannot_watch_the_jobs_of_others(world: World) -> None:
    job = world.rows[OTHER].ids["job"]
    hidden = world.send("GET", f"/v1/jobs/{job}/events", "reader", MINE)
    assert (hidden.status_code, hidden.json()["detail"]) == (404, f"no job {job!r}")
    assert '"state":"succeeded"' in world.send("GET", f"/v1/jobs/{job}/events", "reader", OTHER).text


def test_a_bound_operator_cannot_cancel_the_import_of_others(world: World) -> None:
    job = world.rows[OTHER].ids["live"]
    refused = world.send("POST", f"/v1/jobs/{job}:cancel", "operator", MINE)
    assert (refused.status_code, refused.json()["detail"]) == (404, f"no job {job!r}")
    assert find(world, "job", job).state == "queued"


def test_a_bound_reader_lists_only_its_collections_and_their_models(world: World) -> None:
    collections = world.send("GET", "/v1/collections", "reader", MINE)
    assert [collection["id"] for collection in collections.json()["collections"]] == [MINE]
    models = world.send("GET", "/v1/models", "reader", MINE)
    ids = {model["id"] for model in models.json()["models"]}
    assert world.rows[MINE].ids["model"] in ids
    assert "lbp-l2" in ids, "a built-in model has learned from no collection"
    assert OTHER not in collections.text + models.text


@pytest.mark.parametrize("kind", ["job", "training", "evaluation", "model"])
def test_a_row_of_others_is_answered_like_one_that_does_not_exist(world: World, kind: str) -> None:
    for role, bound in (("admin", (MINE,)), ("admin", ())):
        row_id = world.rows[OTHER].ids[kind] if bound else ABSENT
        answer = world.send("GET", f"/v1/{kind}s/{row_id}", role, *bound)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (404, "ResourceNotFound")
        assert problem["detail"] == f"no {kind} {row_id!r}"


def test_an_id_that_the_database_cannot_store_does_not_exist(world: World) -> None:
    for path in ("/v1/jobs/%00", "/v1/models/a%00b", f"/v1/trainings/{'x' * 300}"):
        assert world.send("GET", path, "admin", MINE).status_code == 404


def test_a_collection_of_others_is_answered_like_one_that_does_not_exist(world: World) -> None:
    for path in ("", "/faces", "/subjects", "/deployments", "/faces/f", "/deployments/identity/atlas"):
        for collection in (OTHER, "nowhere"):
            answer = world.send("GET", f"/v1/collections/{collection}{path}", "admin", MINE)
            assert (answer.status_code, answer.json()["detail"]) == (404, f"no collection {collection!r}")
    for collection in (OTHER, "nowhere"):
        refused = world.send("PUT", f"/v1/collections/{collection}", "admin", MINE)
        assert (refused.status_code, refused.json()["code"]) == (403, "AccessDenied")


def test_what_a_body_names_of_others_does_not_exist(world: World) -> None:
    rows = world.rows[OTHER]
    training = {"collection": OTHER, "method": "wpca"}
    borrowed = {"collection": MINE, "method": "wpca", "sources": [{"collection": OTHER, "from": "subjects"}]}
    continued = {"collection": MINE, "method": "wpca", "start_from": rows.ids["model"]}
    label = {"face_a": rows.faces[0], "face_b": rows.faces[1], "same": False}
    for path, body, status in (
        ("/v1/trainings", training, 404),
        ("/v1/trainings", borrowed, 404),
        ("/v1/trainings", continued, 422),  # the method cannot continue from any model
        ("/v1/evaluations", {"collection": OTHER}, 404),
        ("/v1/evaluations", {"collection": MINE, "model": rows.ids["model"]}, 404),
        ("/v1/evaluations", {"collection": MINE, "against": rows.ids["evaluation"]}, 404),
        ("/v1/labels", {"labels": [label]}, 422),
        ("/v1/labels:suggest", {"collection": OTHER}, 404),
        (f"/v1/models/{world.rows[MINE].ids['model']}:publish", {"collection": OTHER}, 404),
        (f"/v1/collections/{MINE}/deployments/identity:publish", {"model": rows.ids["model"]}, 404),
        (f"/v1/collections/{MINE}/deployments/identity:compare", {"models": ["champion", rows.ids["model"]]}, 404),
    ):
        answer = world.send("POST", path, "admin", MINE, json=body)
        assert answer.status_code == status, (path, body, answer.text)
        if status == 404:
            assert answer.json()["code"] == "ResourceNotFound"
    absent = label | {"face_a": ABSENT}
    details = [
        world.send("POST", "/v1/labels", "admin", MINE, json={"labels": [body]}).json()["detail"]
        for body in (label, absent)
    ]
    assert details[0] == details[1].replace(ABSENT, rows.faces[0])
    with reading(world.resources.database) as session:
        assert session.scalars(select(Job).where(Job.kind.in_(("train", "publish", "compare")))).all() == []


def test_every_collection_parameter_of_a_query_is_checked(world: World) -> None:
    photos = {"images": ["", ""]}
    mine, other = f"collection={MINE}", f"collection={OTHER}"
    for query in (other, f"{mine}&{other}", f"{other}&{mine}"):
        answer = world.send("POST", f"/v1/verify?{query}", "reader", MINE, json=photos)
        assert (answer.status_code, answer.json()["detail"]) == (404, f"no collection {OTHER!r}")


def test_labels_of_others_are_neither_listed_nor_withdrawn(world: World) -> None:
    labels = world.send("GET", "/v1/labels", "operator", MINE).json()["labels"]
    assert {label["by"] for label in labels} == {f"{MINE}-labeller"}
    taken_back = world.send("DELETE", f"/v1/labels?by={OTHER}-labeller", "operator", MINE)
    assert taken_back.json()["withdrawn"] == 0
    [label] = world.send("GET", f"/v1/labels?by={OTHER}-labeller", "operator").json()["labels"]
    assert label["withdrawn_at"] is None


def test_a_training_belongs_to_every_collection_that_it_reads(world: World) -> None:
    request = {"collection": MINE, "sources": [{"collection": None, "from": "labels"}, {"collection": OTHER}]}
    with writing(world.resources.database) as session:
        training = Training(request=request)
        session.add(training)
        session.flush()
        training.job_id = enqueue(session, Train(training=training.id, collection=MINE), delay=3600.0).id
    for kind, row_id in (("training", training.id), ("job", training.job_id)):
        for bound, status in (((MINE,), 404), ((OTHER,), 404), ((), 200)):
            assert world.send("GET", f"/v1/{kind}s/{row_id}", "admin", *bound).status_code == status
            listed = world.send("GET", f"/v1/{kind}s", "admin", *bound).text
            assert (row_id in listed) == (status == 200)
    with writing(world.resources.database) as session:
        session.delete(session.get_one(Job, training.job_id))
        session.delete(session.get_one(Training, training.id))


def test_a_bound_admin_archives_only_models_of_its_own_collections_alone(world: World) -> None:
    model = make_model(f"{OTHER}-archived")
    model.provenance["changes"] = {OTHER: 1}
    path = f"/v1/models/{model.id}:archive"
    with writing(world.resources.database) as session:
        world.resources.models.keep(session, model, training_id=world.rows[OTHER].ids["training"])
        session.get_one(Deployment, (MINE, "identity")).challenger = model.id
    shared = world.send("POST", path, "admin", OTHER)
    assert (shared.status_code, MINE in shared.text) == (403, False)
    borrowed = world.send("POST", path, "admin", MINE)
    assert (borrowed.status_code, OTHER in borrowed.json()["detail"].replace(model.id, "")) == (403, False)
    with writing(world.resources.database) as session:
        session.get_one(Deployment, (MINE, "identity")).challenger = None
    assert world.send("POST", "/v1/models/lbp-l2:archive", "admin", MINE).status_code == 409, "it is built in"
    assert world.send("POST", path, "admin", OTHER).status_code == 200


def test_a_model_that_others_have_trained_does_not_name_them(world: World) -> None:
    model = world.rows[OTHER].ids["model"]
    with writing(world.resources.database) as session:
        session.get_one(Deployment, (MINE, "identity")).challenger = model
    seen = world.send("GET", f"/v1/models/{model}", "reader", MINE)
    assert (seen.status_code, seen.json()["manifest"]["facts"]["changes"]) == (200, {})
    assert [entry["collection"] for entry in seen.json()["deployed"]] == [MINE]
    assert OTHER not in seen.text.replace(model, "")
    assert world.send("GET", f"/v1/models/{model}", "reader").json()["manifest"]["facts"]["changes"] == {OTHER: 1}
    with writing(world.resources.database) as session:
        session.get_one(Deployment, (MINE, "identity")).challenger = None


@pytest.mark.parametrize("role", ["reader", "admin"])
def test_a_model_of_others_shows_nothing_of_their_training(world: World, role: str) -> None:
    model = make_model(f"shared-model-{role}")
    plan = {"collection": OTHER, "sources": [{"from": "labels", "labellers": {f"{OTHER}-labeller": 0.7}}]}
    learned = {"changes": {OTHER: 1, MINE: 1}, "labels": {f"{OTHER}-task": {"pairs": 7}}}
    model = replace(model, provenance={"made": "trained", "collection": OTHER, "plan": plan, **learned})
    report = {"people": [f"{OTHER}-person"]}
    with writing(world.resources.database) as session:
        world.resources.models.keep(session, model, report=report)
        session.get_one(Deployment, (MINE, "identity")).challenger = model.id
    path = f"/v1/models/{model.id}"
    seen = world.send("GET", path, role, MINE)
    assert (seen.status_code, OTHER in seen.text) == (200, False)
    facts = seen.json()["manifest"]["facts"]
    assert (facts["changes"], facts["made"], seen.json()["report"]) == ({MINE: 1}, "trained", {})
    whole = world.send("GET", path, "operator").json()
    assert (whole["manifest"]["facts"]["plan"], whole["report"]) == (plan, report)
    read = world.send("GET", path, "reader").json()
    assert ("plan" in read["manifest"]["facts"], read["report"]) == (False, {}), "as of the training"
    with writing(world.resources.database) as session:
        session.get_one(Deployment, (MINE, "identity")).challenger = None


def test_a_model_without_a_training_belongs_to_the_collections_that_it_has_learned_from(world: World) -> None:
    first, shared = make_model("first-model"), make_model("recogniser-model")
    first.provenance["changes"] = {OTHER: 1}
    with writing(world.resources.database) as session:
        for model in (first, shared):
            world.resources.models.keep(session, model)
    for model, bound, status in ((first, MINE, 404), (first, OTHER, 200), (shared, MINE, 200), (shared, OTHER, 200)):
        assert world.send("GET", f"/v1/models/{model.id}", "reader", bound).status_code == status
    assert world.send("POST", f"/v1/models/{shared.id}:archive", "admin", MINE).status_code == 403, "all share it"
    assert world.send("POST", f"/v1/models/{first.id}:archive", "admin", OTHER).status_code == 200


def test_a_training_policy_names_nothing_of_others(world: World) -> None:
    path = f"/v1/collections/{MINE}/deployments/identity/training-policy"
    for fields in (
        {"sources": [{"collection": OTHER, "from": "subjects"}]},
        {"start_from": world.rows[OTHER].ids["model"]},
    ):
        refused = world.send("PATCH", path, "admin", MINE, json={"training": fields})
        assert (refused.status_code, refused.json()["code"]) == (404, "ResourceNotFound")
    assert world.send("GET", path, "operator", MINE).json()["training"] == {}
    mixed = {"sources": [{"collection": MINE, "from": "subjects"}, {"collection": OTHER, "from": "subjects"}]}
    world.send("PATCH", path, "admin", json={"training": mixed}).raise_for_status()
    for role in ("operator", "admin"):
        shown = world.send("GET", path, role, MINE)
        assert shown.json()["training"] is None
        assert OTHER not in shown.text
    refused = world.send("PATCH", path, "admin", MINE, json={"hours": 48})
    assert refused.status_code == 403
    assert OTHER not in refused.text
    assert world.send("GET", path, "operator").json()["training"] == mixed
    assert world.send("PATCH", path, "admin", MINE, json={"training": {}}).json()["training"] == {}


def test_a_model_of_imported_vectors_belongs_to_the_collections_that_hold_them(world: World) -> None:
    """It says what made the vectors of others. Another collection of the same vectors may use it."""
    clinic, descriptor = "clinic", {"external": {"name": "clinic-recogniser", "dim": 7, "metric": "l2"}}
    made = world.send("PUT", f"/v1/collections/{clinic}", "admin", json={"descriptor": descriptor})
    made.raise_for_status()
    deployment = world.send("GET", f"/v1/collections/{clinic}/deployments/identity", "reader")
    model = deployment.json()["champion"]
    assert "clinic" not in world.send("GET", "/v1/models", "reader", MINE).text
    assert world.send("GET", f"/v1/models/{model}", "reader", MINE).status_code == 404
    assert world.send("GET", f"/v1/models/{model}", "reader").status_code == 200
    own = "clinic-desk"
    world.make_keys(own)
    world.send("PUT", f"/v1/collections/{own}", "operator", own, json={"descriptor": descriptor}).raise_for_status()
    assert world.send("GET", f"/v1/models/{model}", "reader", own).status_code == 200
    assert world.send("GET", f"/v1/collections/{own}", "reader", own).json()["descriptor"] == descriptor


@pytest.mark.parametrize(
    ("scope", "template", "kind"),
    [
        (COLLECTION, "/v1/collections/{collection}/things", "collection"),
        (COLLECTION, "/v1/things", "collection"),
        (JOB, "/v1/jobs/{job_id}/things", "job"),
        (TRAINING, "/v1/trainings/{training_id}/things", "training"),
        (EVALUATION, "/v1/evaluations/{evaluation_id}/things", "evaluation"),
        (MODEL, "/v1/models/{model}/things", "model"),
        (KEY, "/v1/keys/{key_id}/things", "key"),
    ],
)
def test_a_handler_that_checks_nothing_is_protected_by_its_declaration(
    world: World, scope: dict[str, str], template: str, kind: str
) -> None:
    api = FastAPI()

    def get_things() -> str:
        return "reached"

    def search_things(collection: str) -> str:
        return get_things()

    handler = get_things if "{" in template else search_things
    api.add_api_route(template, handler, openapi_extra=READER | scope)
    routes = [route for route in api.routes if isinstance(route, APIRoute)]
    protected = AuthMiddleware(api, RequestChecks(routes, world.resources.settings, lambda: world.resources))

    async def send(collection: str, role: str, *bound: str) -> httpx.Response:
        row_id = collection if kind == "collection" else world.rows[collection].ids[kind]
        path = re.sub(r"\{\w+\}", row_id, template)
        query = {"collection": collection} if "{" not in template else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(protected), base_url="http://api") as client:
            return await client.get(path, headers=world.headers[role, bound], params=query)

    hidden = anyio.run(send, OTHER, "admin", MINE)
    assert (hidden.status_code, hidden.json()["code"]) == (404, "ResourceNotFound")
    assert anyio.run(send, OTHER, "admin", OTHER).text == '"reached"'
    assert anyio.run(send, OTHER, "admin").text == '"reached"'


@pytest.mark.parametrize(
    ("path", "extra", "words"),
    [
        ("/v1/things", {"x-role": "reader"}, "does not say"),
        ("/v1/things", {"x-role": "reader", "x-scope": "thing"}, "does not say"),
        ("/v1/things", {"x-scope": "rows"}, "no role"),
        ("/v1/things", {"x-role": "reader", **ROWS}, "neither a session nor the caller"),
        ("/v1/things", {"x-role": "reader", **COLLECTION}, "no parameter"),
        ("/v1/things/{thing}", {"x-role": "reader", "x-scope": "job"}, "none in its path"),
        ("/v1/collections/{collection}/things", {"x-role": "reader", **ROWS}, "has a collection in its path"),
    ],
)
def test_the_application_refuses_a_route_without_a_fitting_scope(path: str, extra: dict[str, str], words: str) -> None:
    router = APIRouter()

    @router.get(path, openapi_extra=extra)
    def list_things() -> None:
        """Without a rule."""

    with pytest.raises(UndeclaredScope, match=f"^GET {path} .*{words}"):
        check_declarations(router.routes)
