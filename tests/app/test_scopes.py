"""The scopes that routes declare: which declarations are refused, and what they let a bound key do. No server runs."""

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from sqlalchemy import delete
from starlette.routing import Route

from app.db.session import reading, writing
from app.db.tables import Job
from app.deps import CallerDep
from app.deps.caller import Caller
from app.deps.scopes import RouteScope, UndeclaredScope, check_binding, check_declarations, check_row
from app.errors import Forbidden, NotFound
from app.queue.jobs import enqueue
from app.queue.messages import ExamineGallery
from app.resources import Resources

BOUND = Caller("k", "admin", collections=("a", "b"))


class Filters(BaseModel):
    collection: str = ""


def take_collection(collection: str = "") -> str:
    return collection


def no_parameter() -> None: ...


def in_query(collection: str = "") -> None: ...


def under_another_name(of: Annotated[str, Query(alias="collection")] = "") -> None: ...


def in_model(filters: Annotated[Filters, Query()]) -> None: ...


def in_dependency(named: Annotated[str, Depends(take_collection)]) -> None: ...


def with_caller(caller: CallerDep) -> None: ...


def check(path: str, scope: str | None, endpoint: Any = no_parameter, role: str | None = "reader") -> None:
    router = APIRouter()
    extra = ({"x-scope": scope} if scope else {}) | ({"x-role": role} if role else {})
    router.add_api_route(path, endpoint, methods=["GET"], openapi_extra=extra or None)
    check_declarations(router.routes)


@pytest.mark.parametrize(
    ("path", "scope", "endpoint"),
    [
        ("/things", "nothing", no_parameter),
        ("/things", "installation", no_parameter),
        ("/things", "rows", with_caller),
        ("/{collection}/things", "collection", no_parameter),
        ("/{collection}", "new-collection", no_parameter),
        ("/things", "collection", in_query),
        ("/things", "collection", under_another_name),
        ("/things", "collection", in_model),
        ("/things", "collection", in_dependency),
        ("/jobs/{job_id}", "job", no_parameter),
        ("/jobs/{job}", "job", no_parameter),
        ("/models/{model}/{job_id}", "model", no_parameter),
    ],
)
def test_a_declaration_that_fits_its_route_is_accepted(path: str, scope: str, endpoint: Any) -> None:
    check(path, scope, endpoint)
    if scope == "nothing":
        check(path, scope, endpoint, role=None)


@pytest.mark.parametrize(
    ("path", "scope", "endpoint", "fault"),
    [
        ("/things", None, no_parameter, "does not say what it is scoped by"),
        ("/things", "Nothing", no_parameter, "does not say what it is scoped by"),
        ("/{collection}/things", "rows", with_caller, "has a collection in its path but the scope rows"),
        ("/{collection}/jobs/{job}", "job", no_parameter, "has a collection in its path but the scope job"),
        ("/things", "new-collection", in_query, "has the scope new-collection but no collection in its path"),
        ("/things", "collection", no_parameter, "has the scope collection but no parameter `collection`"),
        ("/jobs/{job_name}", "job", no_parameter, "has the scope job but none in its path"),
        ("/models/{model}", "job", no_parameter, "has the scope job but none in its path"),
        ("/things", "rows", no_parameter, "has the scope rows but takes neither a session nor the caller"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_with_its_route(
    path: str, scope: str | None, endpoint: Any, fault: str
) -> None:
    with pytest.raises(UndeclaredScope) as refused:
        check(path, scope, endpoint)
    assert str(refused.value) == f"GET {path} {fault}: see app/deps/scopes.py"


def test_a_scope_needs_a_role_and_a_route_that_can_state_one() -> None:
    with pytest.raises(UndeclaredScope, match=r"^GET /things has the scope installation but no role: see"):
        check("/things", "installation", role=None)
    plain = Route("/plain", no_parameter, methods=["POST", "DELETE"])
    with pytest.raises(UndeclaredScope, match=r"^DELETE, POST /plain is no APIRoute and cannot have a scope: see"):
        check_declarations([plain])
    with pytest.raises(UndeclaredScope, match=r"^ <object .*> is no APIRoute"):
        check_declarations([object()])


def test_every_route_is_checked() -> None:
    router = APIRouter()
    router.add_api_route("/first", no_parameter, openapi_extra={"x-scope": "nothing"})
    router.add_api_route("/second", no_parameter)
    with pytest.raises(UndeclaredScope, match="/second"):
        check_declarations(router.routes)


def test_a_bound_key_changes_nothing_of_the_installation() -> None:
    with pytest.raises(Forbidden) as refused:
        check_binding(RouteScope.INSTALLATION, BOUND, {}, {})
    words = "this changes what all collections share; it needs a key that is bound to no collection"
    assert refused.value.detail == words


def test_a_bound_key_creates_only_its_own_collections() -> None:
    check_binding(RouteScope.NEW_COLLECTION, BOUND, {"collection": "b"}, {})
    with pytest.raises(Forbidden) as refused:
        check_binding(RouteScope.NEW_COLLECTION, BOUND, {"collection": "c"}, {})
    assert refused.value.detail == "this key is bound to a, b and cannot create other collections"


def test_every_collection_that_a_request_names_is_checked() -> None:
    check_binding(RouteScope.COLLECTION, BOUND, {"collection": "a"}, {"collection": ["c"]})  # the path decides
    check_binding(RouteScope.COLLECTION, BOUND, {}, {"collection": ["a", "b"]})
    check_binding(RouteScope.COLLECTION, BOUND, {}, {})
    for path, query in (({"collection": "c"}, {}), ({}, {"collection": ["a", "c"]})):
        with pytest.raises(NotFound, match=r"^no collection 'c'$"):
            check_binding(RouteScope.COLLECTION, BOUND, path, query)


def test_other_scopes_are_left_to_the_session() -> None:
    for scope in (RouteScope.ROWS, RouteScope.NOTHING, RouteScope.JOB, RouteScope.MODEL):
        check_binding(scope, BOUND, {"collection": "c"}, {"collection": ["c"]})


def test_a_row_in_the_path_exists_only_for_sessions_that_see_it(lasting_sqlite: Resources) -> None:
    with writing(lasting_sqlite.database) as session:
        job = enqueue(session, ExamineGallery(collection="a")).id
    for parameter in ("job", "job_id"):
        with reading(lasting_sqlite.database, ("a",)) as session:
            check_row(session, RouteScope.JOB, {"task": "t", parameter: job})
        with reading(lasting_sqlite.database, ("b",)) as session, pytest.raises(NotFound, match=rf"^no job '{job}'$"):
            check_row(session, RouteScope.JOB, {"task": "t", parameter: job})
    with writing(lasting_sqlite.database) as session:
        session.execute(delete(Job))
