"""What the operations of a route are scoped by: an entry of its `openapi_extra`, like its role.

AuthMiddleware checks the scope before the route runs, and the application does not start if a route has none. The
session of a route sees only rows of the key's collections (app/db/visibility.py), whatever its scope.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from app.db import lookups
from app.deps import get_caller
from app.deps.caller import Caller
from app.errors import Forbidden


class RouteScope(StrEnum):
    """Whose data a route reads or changes, and what a key that is bound to other collections is answered.

    COLLECTION: the collection in the path or the query; 404
    NEW_COLLECTION: the collection in the path, which the request may create; 403
    JOB, TRAINING, EVALUATION, MODEL, KEY, SNAPSHOT: the collections of the row in the path; 404
    ROWS: what the request lists or names; rows of other collections do not exist for it
    INSTALLATION: what all collections share and the request changes; 403 for every bound key
    NOTHING: what belongs to no collection; nothing is checked
    """

    COLLECTION = "collection"
    NEW_COLLECTION = "new-collection"
    JOB = "job"
    TRAINING = "training"
    EVALUATION = "evaluation"
    MODEL = "model"
    KEY = "key"
    SNAPSHOT = "snapshot"
    ROWS = "rows"
    INSTALLATION = "installation"
    NOTHING = "nothing"


ROW_KINDS: dict[RouteScope, lookups.Kind] = {
    RouteScope.JOB: "job",
    RouteScope.TRAINING: "training",
    RouteScope.EVALUATION: "evaluation",
    RouteScope.MODEL: "model",
    RouteScope.KEY: "key",
    RouteScope.SNAPSHOT: "snapshot",
}
"""Scopes of a row in the path -> the kind of row. The parameter is `<kind>` or `<kind>_id`."""


def _declare(scope: RouteScope) -> dict[str, Any]:
    return {"x-scope": scope.value}


COLLECTION = _declare(RouteScope.COLLECTION)
NEW_COLLECTION = _declare(RouteScope.NEW_COLLECTION)
JOB = _declare(RouteScope.JOB)
TRAINING = _declare(RouteScope.TRAINING)
EVALUATION = _declare(RouteScope.EVALUATION)
MODEL = _declare(RouteScope.MODEL)
KEY = _declare(RouteScope.KEY)
SNAPSHOT = _declare(RouteScope.SNAPSHOT)
ROWS = _declare(RouteScope.ROWS)
INSTALLATION = _declare(RouteScope.INSTALLATION)
NOTHING = _declare(RouteScope.NOTHING)


class UndeclaredScope(Exception):
    """A route does not say what it is scoped by, or its path or dependencies do not fit what it says."""


def check_declarations(routes: Iterable[Any]) -> None:
    """Raises UndeclaredScope, naming the first route whose scope is missing or does not fit."""
    for route in routes:
        fault = _find_fault(route) if isinstance(route, APIRoute) else "is no APIRoute and cannot have a scope"
        if fault is not None:
            methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
            raise UndeclaredScope(f"{methods} {getattr(route, 'path', route)} {fault}: see app/deps/scopes.py")


def _find_fault(route: APIRoute) -> str | None:
    extra = route.openapi_extra or {}
    if extra.get("x-scope") not in set(RouteScope):
        return "does not say what it is scoped by"
    scope = RouteScope(extra["x-scope"])
    if scope != RouteScope.NOTHING and "x-role" not in extra:
        return f"has the scope {scope} but no role"
    in_path = set(route.param_convertors)
    if "collection" in in_path and scope not in (RouteScope.COLLECTION, RouteScope.NEW_COLLECTION):
        return f"has a collection in its path but the scope {scope}"
    if scope == RouteScope.NEW_COLLECTION and "collection" not in in_path:
        return "has the scope new-collection but no collection in its path"
    if scope == RouteScope.COLLECTION and "collection" not in in_path | list_query_names(route.dependant):
        return "has the scope collection but no parameter `collection`"
    if scope in ROW_KINDS and _find_row_parameter(ROW_KINDS[scope], in_path) is None:
        return f"has the scope {scope} but none in its path"
    if scope == RouteScope.ROWS and get_caller not in {d.call for d in _iterate_dependants(route.dependant)}:
        return "has the scope rows but takes neither a session nor the caller"
    return None


def _find_row_parameter(kind: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if name in (kind, f"{kind}_id")), None)


def _iterate_dependants(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _iterate_dependants(inner)


def list_query_names(dependant: Dependant) -> set[str]:
    """List the names of query parameters, also of those that are fields of a model."""
    names = set[str]()
    for parameter in (p for d in _iterate_dependants(dependant) for p in d.query_params):
        fields = getattr(parameter.field_info.annotation, "model_fields", {})
        names |= {field.alias or name for name, field in fields.items()} or {parameter.alias}
    return names


def check_binding(
    scope: RouteScope, caller: Caller, path_params: Mapping[str, Any], query: Mapping[str, Sequence[str]]
) -> None:
    """Check a key that is bound to collections. Raises Forbidden or NotFound if the request reaches beyond them.

    Rows in the path are looked up by `check_row`.
    """
    if scope == RouteScope.INSTALLATION:
        raise Forbidden("this changes what all collections share; it needs a key that is bound to no collection")
    if scope == RouteScope.NEW_COLLECTION and path_params["collection"] not in caller.collections:
        raise Forbidden(f"this key is bound to {', '.join(caller.collections)} and cannot create other collections")
    if scope == RouteScope.COLLECTION:
        for collection in [path_params["collection"]] if "collection" in path_params else query.get("collection", ()):
            caller.check(collection)


def check_row(session: Session, scope: RouteScope, path_params: Mapping[str, Any]) -> None:
    """Raises NotFound if the row in the path, one of ROW_KINDS, does not exist for this session."""
    kind = ROW_KINDS[scope]
    name = _find_row_parameter(kind, path_params)
    assert name is not None, "the declarations were checked at the start"
    lookups.get_row(session, kind, path_params[name])
