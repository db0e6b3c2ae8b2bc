"""The OpenAPI document is complete and valid, and its examples are accepted by the API."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openapi_spec_validator
import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from app.config import Settings
from app.db.examples import COLLECTION
from app.deps.photos import SMALLEST_IMAGE
from app.deps.problems import KNOWN_PROBLEMS, MEDIA_TYPE, build_example
from app.errors import AppError
from app.main import ROUTERS, create_app
from tests.openapi_checker import build_validator, list_violations, openapi_document
from tests.service import Service

Operation = tuple[str, str, dict[str, Any]]
OPERATIONS: list[Operation] = [
    (method, path, described)
    for path, item in openapi_document()["paths"].items()
    for method, described in item.items()
]
ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
OF_JOBS = {
    "ArchiveTooLarge",
    "TooFewLabels",
    "ModelNotReady",
    "GateRefused",
    "NotMeasured",
    "NothingToEvaluate",
    "NothingToMap",
    "WorkerLost",
    "TooMuchMemory",
    "TookTooLong",
    "CannotGoOn",
    "FitFailed",
    "FacesFailed",
    "PartFailed",
    "TooManyDamaged",
    "InsufficientStorage",
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o[0]} {o[1]}")


def resolve_reference(part: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        names = part["$ref"].removeprefix("#/").split("/")
        part = openapi_document()
        for name in names:
            part = part[name]
    return part


def list_examples(content: dict[str, Any]) -> list[Any]:
    """List the examples of a media type or a schema: its own, else those of the schema that it refers to."""
    own = [content["example"]] if "example" in content else content.get("examples", [])
    below = [content["schema"]] if "schema" in content else content.get("anyOf", [])
    below += [resolve_reference(content)] if "$ref" in content else []
    return list(own) or [example_value for part in below for example_value in list_examples(part)]


def test_routes_are_built_once() -> None:
    served = [route for route in create_app(Settings()).routes if isinstance(route, APIRoute)]
    assert [id(route) for route in served[: len(ROUTES)]] == [id(route) for route in ROUTES]


def test_it_is_openapi_3_1() -> None:
    assert openapi_document()["openapi"].startswith("3.1")
    openapi_spec_validator.validate(openapi_document())


@each_operation
def test_every_operation_states_its_purpose_and_its_role(operation: Operation) -> None:
    _, path, described = operation
    assert described["summary"]
    assert described["description"]
    assert set(described["tags"]) <= {tag["name"] for tag in openapi_document()["tags"]}
    role = described.get("x-role")
    assert described["security"] == ([{"bearer": [role]}, {"key": [role]}] if role else [])
    assert role or path in ("/livez", "/readyz")


def test_operation_and_schema_names_suit_generated_clients() -> None:
    names = [described["operationId"] for _, _, described in OPERATIONS]
    assert len(names) == len(set(names))
    assert all(
        re.fullmatch(r"[A-Za-z]+(_[a-z]+)*", name) for name in [*names, *openapi_document()["components"]["schemas"]]
    )
    assert not {"HTTPValidationError", "ValidationError"} & openapi_document()["components"]["schemas"].keys()


@each_operation
def test_every_parameter_has_a_description_and_an_example(operation: Operation) -> None:
    for given in operation[2].get("parameters", ()):
        parameter = resolve_reference(given)
        assert parameter.get("description"), parameter["name"]
        shown = parameter["schema"].get("default") is not None or list_examples(parameter["schema"])
        assert shown or parameter["schema"].get("type") == "boolean", parameter["name"]


@each_operation
def test_every_success_and_every_body_has_an_example(operation: Operation) -> None:
    _, _, described = operation
    good = {status: answer for status, answer in described["responses"].items() if status < "300"}
    assert good
    for status, answer in good.items():
        assert answer["description"] != "Successful Response"
        for kind, content in answer.get("content", {}).items():
            assert list_examples(content) or kind.startswith("image/"), f"{status} {kind}"
        assert "content" in answer or status == "204"
    for kind, content in described.get("requestBody", {}).get("content", {}).items():
        assert list_examples(content) or content["schema"] == {}, kind  # an archive's bytes


def iterate_schemas(node: Any, where: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over every object of the document except those inside examples."""
    if isinstance(node, dict):
        yield where, node
        for name, inner in node.items():
            if name not in ("example", "examples") or where == "#/components":
                yield from iterate_schemas(inner, f"{where}/{name}")
    if isinstance(node, list):
        for i, inner in enumerate(node):
            yield from iterate_schemas(inner, f"{where}/{i}")


def test_every_example_matches_its_schema() -> None:
    checked = 0
    for where, part in iterate_schemas(openapi_document()):
        shown = part.get("examples", [])
        if isinstance(shown, dict):
            shown = [resolve_reference(one)["value"] for one in shown.values() if not where.startswith("#/components")]
        shown = [*shown, part["example"]] if "example" in part else shown
        for one in shown:
            checked += 1
            assert list_violations(build_validator(part.get("schema", part)), one) == [], where
    assert checked > 500


@pytest.mark.parametrize("route", [r for r in ROUTES if r.dependant.body_params], ids=lambda r: r.name)
def test_every_request_example_is_accepted(route: APIRoute) -> None:
    [described] = [described for _, _, described in OPERATIONS if described["operationId"] == route.name]
    for kind, content in described["requestBody"]["content"].items():
        for shown in list_examples(content):
            for name, given in shown.items() if kind == "multipart/form-data" else ():
                assert name in {field.alias for field in route.dependant.body_params}, given
            if kind == "application/json":
                [field] = route.dependant.body_params
                TypeAdapter(field.field_info.annotation).validate_json(json.dumps(shown))


def test_every_photo_example_is_accepted(service: Service) -> None:
    service.client.put(f"/v1/collections/{COLLECTION}").raise_for_status()
    answers: list[httpx.Response] = []
    for _, path, described in OPERATIONS:
        if described.get("x-body") == "photo":
            where, content = path.format(collection=COLLECTION), described["requestBody"]["content"]
            answers += [service.client.post(where, json=shown) for shown in list_examples(content["application/json"])]
            answers += [send_form(service, where, **shown) for shown in list_examples(content["multipart/form-data"])]
    assert len(answers) == 6
    for answer in answers:
        assert answer.status_code == 200 or answer.json()["code"] == "NoFace", answer.text  # it is one black pixel


def send_form(service: Service, path: str, file: str | list[str], **fields: Any) -> httpx.Response:
    names = [file] if isinstance(file, str) else file
    form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return service.client.post(
        path, files=[("file", (name, base64.b64decode(SMALLEST_IMAGE))) for name in names], data=form
    )


@each_operation
def test_answers_that_follow_from_a_route_are_listed(operation: Operation) -> None:
    method, path, described = operation
    listed = set(described["responses"])
    if "x-role" in described:
        assert {"401", "403", "500", "503"} <= listed
    if "requestBody" in described:
        assert {"413", "422"} <= listed
    if described.get("parameters"):
        assert "422" in listed
    if path.count("{") and not (method == "put" and path.count("{") == 1):
        assert "404" in listed
    assert ("412" in listed) == any(p.get("name") == "if-match" for p in described.get("parameters", ()))


@each_operation
def test_every_error_is_a_problem_and_names_its_codes(operation: Operation) -> None:
    for status, answer in operation[2]["responses"].items():
        if status < "400":
            continue
        content = answer["content"][MEDIA_TYPE]
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert content["examples"]
        for code, shown in content["examples"].items():
            problem = resolve_reference(shown)["value"]
            assert (problem["status"], problem["code"]) == (int(status), code)
            assert f"`{code}`" in answer["description"]


@each_operation
def test_headers_are_listed_where_they_are_sent(operation: Operation) -> None:
    _, path, described = operation
    for status, answer in described["responses"].items():
        names = set(answer["headers"])
        assert "X-Request-Id" in names
        assert ({"Location", "Retry-After"} <= names) == (status == "202")
        assert ("Retry-After" in names) == (status in ("202", "429", "503"))
        assert ("WWW-Authenticate" in names) == (status == "401")
        assert ({"X-Model", "X-Index-Generation"} <= names) == (status == "200" and "search" in described["tags"])
        is_pointer = path.endswith("/training-policy") or ("{task}" in path and "deployments" in described["tags"])
        assert ("ETag" in names) == (status == "200" and is_pointer)
        assert all(resolve_reference(header)["schema"] for header in answer["headers"].values())


def test_every_problem_code_has_a_description() -> None:
    known = {code for _, code in KNOWN_PROBLEMS}
    app = Path(__file__).resolve().parents[2] / "app"
    raised = {code for path in app.rglob("*.py") for code in re.findall(r"code=\"(\w+)\"", path.read_text())}
    raised |= {kind.code for kind in AppError.__subclasses__()}
    assert raised - OF_JOBS <= known
    for refusal in KNOWN_PROBLEMS:
        assert (build_example(refusal)["value"]["status"], build_example(refusal)["value"]["code"]) == refusal


def test_a_route_cannot_list_an_unknown_problem() -> None:
    from app.deps.problems import declare_problems

    with pytest.raises(KeyError):
        declare_problems((418, "Teapot"))
