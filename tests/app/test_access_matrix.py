"""Every operation of the API under every role and binding, as its declarations `x-role` and `x-scope` say.

The requests come from the OpenAPI document, so a new route is tested as soon as it is declared.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from app.config import Settings
from app.db.session import writing
from app.deps.caller import RANK
from app.deps.scopes import ROW_KINDS, RouteScope
from app.resources import open_resources
from app.storage.model_cache import ensure_lbp_model
from tests.databases import migrate
from tests.openapi_checker import openapi_document
from tests.two_collections import MINE, OTHER, ROLES, World, open_world


class Operation(NamedTuple):
    """An operation of the document. role: None if it needs no key"""

    method: str
    path: str
    role: str | None
    scope: RouteScope

    @property
    def deletes_collection(self) -> bool:
        return (self.method, self.path) == ("DELETE", "/v1/collections/{collection}")


OPERATIONS = [
    Operation(method.upper(), path, operation.get("x-role"), RouteScope(operation["x-scope"]))
    for path, item in openapi_document()["paths"].items()
    for method, operation in item.items()
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The API in this process on SQLite."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), default_recogniser="lbp", patience_seconds=0.1)
    migrate(settings)
    with open_resources(settings) as resources:
        with writing(resources.database) as session:
            ensure_lbp_model(session, resources.models)
        with open_world(resources) as opened:
            yield opened


def choose_collection(world: World, operation: Operation) -> str:
    """Return the collection whose rows the requests name. An operation that deletes gets a new one."""
    if operation.method != "DELETE":
        return MINE
    name = f"cellar-{len(world.rows)}"
    world.add_collection(name)
    return name


def fill_path(world: World, operation: Operation, collection: str) -> str:
    """Fill the parameters of a path with rows of the collection. A KeyError names a parameter that is missing here."""
    rows = world.rows[collection]
    values = {
        "collection": collection, "task": "identity", "name": "expression", "subject": rows.subject,
        "face_id": rows.faces[0], "cluster": rows.ids["cluster"], "model": rows.ids["model"], "job_id": rows.ids["job"],
        "training_id": rows.ids["training"], "evaluation_id": rows.ids["evaluation"], "key_id": rows.ids["key"],
        "erasure": rows.ids["erasure"], "snapshot": rows.ids["snapshot"],
    }  # fmt: skip
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], operation.path)


def describe_hidden(world: World, operation: Operation, collection: str) -> str | None:
    """Return the detail by which a row or collection of others is hidden; None if the operation names none."""
    if operation.scope == RouteScope.COLLECTION:
        return f"no collection {collection!r}"
    kind = ROW_KINDS.get(operation.scope)
    return kind and f"no {kind} {world.rows[collection].ids[kind]!r}"


def send(world: World, operation: Operation, collection: str, headers: dict[str, str]) -> httpx.Response:
    body: dict[str, Any] = {} if operation.method in ("GET", "DELETE") else {"json": {}}
    query = {"collection": collection} if operation.path == "/v1/verify" else {}
    path = fill_path(world, operation, collection)
    return world.client.request(operation.method, path, headers=headers, params=query, **body)


def check(world: World, operation: Operation, collection: str, role: str, bound: tuple[str, ...]) -> None:
    """Check the answer to a key against what the declarations say."""
    answer = send(world, operation, collection, world.headers[role, bound])
    detail = answer.json().get("detail") if "problem" in answer.headers.get("content-type", "") else None
    hidden, is_foreign = describe_hidden(world, operation, collection), bound == (OTHER,)
    if operation.role is not None and RANK[role] < RANK[operation.role]:
        assert (answer.status_code, "needs the role" in str(detail)) == (403, True)
    elif operation.scope == RouteScope.INSTALLATION and bound:
        assert (answer.status_code, "bound to no collection" in str(detail)) == (403, True)
    elif operation.scope == RouteScope.NEW_COLLECTION and is_foreign:
        assert (answer.status_code, f"bound to {OTHER}" in str(detail)) == (403, True)
    elif hidden is not None and is_foreign:
        assert (answer.status_code, detail) == (404, hidden)
    else:
        assert answer.status_code not in (401, 403, 405, 500), answer.text
        assert detail is None or detail != hidden, answer.text
        assert not is_foreign or collection not in answer.text, "it shows something of another collection"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.method} {o.path}")
def test_a_key_may_what_the_declarations_say(world: World, operation: Operation) -> None:
    collection = choose_collection(world, operation)
    without_key = send(world, operation, collection, {})
    assert (without_key.status_code == 401) == (operation.role is not None)
    assert collection not in without_key.text
    for role in reversed(ROLES):
        for bound in ((OTHER,), (collection,), ()):
            if not (operation.deletes_collection and role == "admin" and bound != (OTHER,)):
                check(world, operation, collection, role, bound)
    if operation.deletes_collection:
        assert send(world, operation, collection, world.headers["admin", (collection,)]).status_code == 204


def test_the_matrix_has_every_scope_and_role() -> None:
    assert {operation.scope for operation in OPERATIONS} == set(RouteScope)
    assert {operation.role for operation in OPERATIONS} == {None, *ROLES}
