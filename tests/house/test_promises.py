"""Lists that must agree: errors and statuses, jobs and handlers, tables and migrations."""

import base64
import inspect
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.db.tables import Base
from app.deps import _open_writing
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.pointer_session import _open_moving
from app.errors import ML_ERRORS
from app.main import ROUTERS
from app.queue.messages import MESSAGES
from app.resources import Resources
from ml import errors, images
from tests.openapi_checker import openapi_document
from workers.handlers import HANDLERS

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def test_every_error_of_ml_has_a_status() -> None:
    own = {e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, errors.LikenessError)} - {
        errors.LikenessError
    }
    assert own == set(ML_ERRORS)


def test_every_job_has_a_handler() -> None:
    assert set(MESSAGES.values()) == set(HANDLERS)


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{sorted(r.methods)[0]} {r.path}")
def test_every_route_names_its_role_and_its_purpose(route: APIRoute) -> None:
    assert route.summary, "a summary for the OpenAPI document"
    if route.path.startswith("/v1"):
        assert (route.openapi_extra or {}).get("x-role") in ("reader", "operator", "admin")


@pytest.mark.parametrize("route", [r for r in ROUTES if "POST" in r.methods], ids=lambda route: route.path)
def test_every_post_that_changes_rows_stores_its_answer_with_them(route: APIRoute) -> None:
    calls = set(iterate_dependencies(route.dependant))
    if calls & {_open_writing, _open_moving}:
        assert isinstance(route, AnswerRoute)
    else:
        assert (route.openapi_extra or {}).get("x-read") or route.path == "/v1/collections/{collection}/faces"


def iterate_dependencies(dependant: Dependant) -> Iterator[object]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from iterate_dependencies(dependency)


def test_every_route_that_takes_a_photo_accepts_a_file_and_base64() -> None:
    operations = [o for p in openapi_document()["paths"].values() for o in p.values() if o.get("x-body") == "photo"]
    assert len(operations) == 3
    for operation in operations:
        content = operation["requestBody"]["content"]
        assert set(content) == {"multipart/form-data", "application/json"}
        form, json = (content[kind]["schema"] for kind in ("multipart/form-data", "application/json"))
        assert form["required"] == ["file"]
        assert form["properties"].keys() - {"file"} == json["properties"].keys() - {"image", "images"}
        image = json["properties"].get("image") or json["properties"]["images"]["items"]
        assert image["contentEncoding"] == "base64"
        for example in json["examples"]:
            for picture in example.get("images", [example.get("image")]):
                assert images.read(base64.b64decode(picture)).shape == (1, 1, 3)


def test_the_tables_equal_those_that_the_migrations_create(resources: Resources) -> None:
    with resources.database.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
