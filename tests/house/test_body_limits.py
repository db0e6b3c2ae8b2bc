"""Every list, object, number and text of a request body has a limit: no body makes a schema work for minutes, and
PostgreSQL, which holds to the lengths of its columns and stores no zero character, can store what is accepted."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, FailFast
from sqlalchemy import String
from sqlalchemy.orm import InstrumentedAttribute

from app.db.tables import Collection, Face, Key, Label, ModelRecord, Subject, Task
from app.main import ROUTERS
from tests.app.test_body_types import iterate_models
from tests.openapi_checker import openapi_document

MAX_ITEMS_WITH_ALL_ERRORS = 128
COLUMNS: dict[str, InstrumentedAttribute[Any] | None] = {
    "KeyIn.name": Key.name,
    "ExternalDescriptor.name": Collection.external_model,
    "RestoreIn.name": Collection.id,
    "collection": Collection.id,
    "collections": Collection.id,
    "task": Task.name,
    "tasks": Task.name,
    "subject": Subject.id,
    "into": Subject.id,
    "without": Subject.id,
    "external_id": Subject.external_id,
    "external_image_id": Face.external_image_id,
    "source": Face.source,
    "by": Label.by,
    "model": ModelRecord.id,
    "models": ModelRecord.id,
    **dict.fromkeys(["note", "description", "reason", "text", "directory", "name", "method", "recogniser"]),
    **dict.fromkeys(["descriptor", "descriptors", "start_from", "from", "at", "against", "EvaluationIn.by"]),
    **dict.fromkeys(["face_a", "face_b", "members", "outliers"]),
}
"""Text fields -> the columns that hold them; None: a column without a limit, a document, or nothing but a lookup."""
MODELS = list(
    {
        model.__name__: model
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for parameter in route.dependant.body_params
        for model in iterate_models(parameter.field_info.annotation, set())
    }.values()
)


def iterate_schemas(schema: dict[str, Any], path: str, document: dict[str, Any], known: set[str]) -> Iterator[Any]:
    """Iterate over the parts of a schema, each with its path. Each schema of the document comes once."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in known:
        return
    if name:
        known.add(name)
        schema, path = document["components"]["schemas"][name], name
    yield path, schema
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    parts += [schema["items"]] if "items" in schema else []
    for part in parts:
        yield from iterate_schemas(part, f"{path}[]", document, known)
    for key, part in schema.get("properties", {}).items():
        yield from iterate_schemas(part, f"{path}.{key}", document, known)


def list_body_schemas(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    known: set[str] = set()
    return [
        found
        for path, item in document["paths"].items()
        for operation in item.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for found in iterate_schemas(content["schema"], path, document, known)
    ]


def is_unlimited(schema: dict[str, Any]) -> bool:
    types = schema.get("type", "")
    is_map = "object" in types and ("properties" not in schema or schema.get("additionalProperties"))
    return ("array" in types and "maxItems" not in schema) or (is_map and "maxProperties" not in schema)


def test_every_list_and_map_of_a_body_has_a_limit() -> None:
    schemas = list_body_schemas(openapi_document())
    assert len(schemas) > 100
    assert [path for path, schema in schemas if is_unlimited(schema)] == []


def is_unbounded_integer(schema: dict[str, Any]) -> bool:
    bounds = ("maximum", "exclusiveMaximum", "enum", "const")
    return "integer" in schema.get("type", "") and not any(bound in schema for bound in bounds)


def list_parameter_schemas(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    parameters = document["components"].get("parameters", {})
    return [
        found
        for path, item in document["paths"].items()
        for operation in item.values()
        for parameter in operation.get("parameters", ())
        for found in iterate_schemas(
            parameters.get(parameter.get("$ref", "").rpartition("/")[2], parameter)["schema"], path, document, set()
        )
    ]


def test_every_integer_of_a_request_has_a_maximum() -> None:
    """A database refuses larger ones, and the request was answered with 500."""
    document = openapi_document()
    schemas = list_parameter_schemas(document) + list_body_schemas(document)
    assert sum("integer" in schema.get("type", "") for _, schema in schemas) > 50
    assert sorted({path for path, schema in schemas if is_unbounded_integer(schema)}) == []


def list_texts(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """List the text fields of bodies that are no files, each with its path."""
    decided = {"enum", "const", "contentMediaType", "contentEncoding", "format"}
    files = {*document["paths"], *(f"{path}.file" for path in document["paths"])}
    return [
        (path.replace("[]", ""), schema)
        for path, schema in list_body_schemas(document)
        if "string" in schema.get("type", "") and path not in files and not schema.keys() & decided
    ]


def accepts(schema: dict[str, Any], text: str) -> bool:
    is_short = len(text) <= schema.get("maxLength", len(text))
    return is_short and re.search(schema.get("pattern", ""), text) is not None


def test_no_text_of_a_body_may_contain_the_zero_character() -> None:
    texts = list_texts(openapi_document())
    assert len(texts) > 50
    assert sorted({path for path, schema in texts if accepts(schema, "a\0b")}) == []


def test_no_text_of_a_body_may_be_longer_than_its_column() -> None:
    """SQLite stores longer ones. PostgreSQL refuses them, and the request was answered with 500."""
    long = set[str]()
    for path, schema in list_texts(openapi_document()):
        name = path.rpartition(".")[2]
        assert path in COLUMNS or name in COLUMNS, f"{path}: state the column that holds it"
        column = COLUMNS.get(path, COLUMNS.get(name))
        if column is not None:
            assert isinstance(column.type, String)
            assert column.type.length is not None
            if accepts(schema, "a" * (column.type.length + 1)):
                long.add(path)
    assert sorted(long) == []


def test_the_check_of_limits_can_fail() -> None:
    assert accepts({"type": "string"}, "a\0b")
    assert not accepts({"type": "string", "maxLength": 2}, "aaa")
    assert not accepts({"type": "string", "pattern": "^a{1,2}$"}, "aaa")
    assert is_unlimited({"type": "array"})
    assert is_unbounded_integer({"type": "integer", "minimum": 1})
    assert not is_unbounded_integer({"type": "integer", "maximum": 1})
    assert is_unlimited({"type": "object", "additionalProperties": True})
    assert not is_unlimited({"type": "object", "properties": {}, "additionalProperties": False})


def test_a_long_list_is_refused_at_its_first_error() -> None:
    """A list that is not validated by the schema at all is validated by its route, item by item."""
    slow = [
        f"{model.__name__}.{name}"
        for model in MODELS
        for name, field in model.model_fields.items()
        if max((getattr(part, "max_length", 0) or 0 for part in field.metadata), default=0) > MAX_ITEMS_WITH_ALL_ERRORS
        and str(field.annotation).startswith(("list", "tuple", "typing"))
        and not any(isinstance(part, FailFast) for part in field.metadata)
        and "SkipValidation" not in str(field.annotation)
    ]
    assert slow == []


def test_no_number_of_a_body_may_be_infinite() -> None:
    def is_finite(metadata: list[Any]) -> bool:
        return any(
            getattr(part, name, None) is not None and getattr(part, name) is not True
            for part in metadata
            for name in ("le", "lt", "allow_inf_nan")
        )

    loose = [
        f"{model.__name__}.{name}"
        for model in MODELS
        for name, field in model.model_fields.items()
        if float in (field.annotation, *getattr(field.annotation, "__args__", ())) and not is_finite(field.metadata)
    ]
    assert loose == []
    assert issubclass(MODELS[0], BaseModel)
