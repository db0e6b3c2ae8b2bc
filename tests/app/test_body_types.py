"""JSON bodies are taken as the OpenAPI document says: a boolean is no number, a number is no boolean or date."""

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from app.access.schemas import MAX_KEY_COLLECTIONS, KeyIn, RotateIn
from app.faces.schemas import BoxIn
from app.labels.schemas import LabelIn
from app.learning.plan import Source
from app.main import ROUTERS
from app.search.params import VectorIn
from app.subjects.schemas import SubjectIn

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def iterate_models(annotation: Any, known: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Iterate over the models that a type consists of, each once."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in known:
        known.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from iterate_models(field.annotation, known)
    for part in typing.get_args(annotation):
        yield from iterate_models(part, known)


def is_lax(field: FieldInfo) -> bool:
    """Whether the field takes one simple type for another."""
    types = {field.annotation, *typing.get_args(field.annotation)}
    return bool(types & {int, float, bool}) and not any(getattr(part, "strict", None) for part in field.metadata)


def test_no_body_takes_one_simple_type_for_another() -> None:
    known: set[type[BaseModel]] = set()
    bodies = [parameter.field_info.annotation for route in ROUTES for parameter in route.dependant.body_params]
    models = [model for body in bodies for model in iterate_models(body, known)]
    lax = [f"{m.__name__}.{name}" for m in models for name, field in m.model_fields.items() if is_lax(field)]
    assert len(models) > 20
    assert lax == []


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (SubjectIn, {"consent": 0}),
        (SubjectIn, {"retain_until": 0}),
        (LabelIn, {"face_a": "a", "face_b": "b", "same": 1}),
        (LabelIn, {"face_a": "a", "face_b": "b", "same": "yes"}),
        (Source, {"from": "metadata.age", "tolerance": False}),
        (Source, {"from": "labels", "labellers": {"ada": True}}),
        (Source, {"from": "labels", "quorum": "2"}),
        (Source, {"from": "labels", "labellers": {"ada": float("inf")}}),
        (VectorIn, {"vector": [0.1, True]}),
        (VectorIn, {"vector": [0.1, "1"]}),
        (BoxIn, {"x": True, "y": 0, "width": 1, "height": 1}),
        (KeyIn, {"role": "reader", "expires_at": float("inf")}),
        (KeyIn, {"role": "reader", "expires_at": float("nan")}),
        (KeyIn, {"role": "reader", "expires_at": 1e300}),
        (RotateIn, {"overlap_seconds": float("nan")}),
    ],
)
def test_a_value_of_another_type_is_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_whole_numbers_are_taken_for_numbers() -> None:
    assert VectorIn.model_validate({"vector": [1, 0.5]}).vector == [1.0, 0.5]


def test_a_key_is_bound_to_a_limited_number_of_collections_each_once() -> None:
    names = [f"c{i}" for i in range(MAX_KEY_COLLECTIONS)]
    assert KeyIn(role="reader", collections=(*names[:3], *names[:2])).collections == tuple(names[:3])
    assert len(KeyIn(role="reader", collections=tuple(names)).collections) == MAX_KEY_COLLECTIONS
    with pytest.raises(ValidationError, match="at most 1000 items"):
        KeyIn(role="reader", collections=(*names, "c"))
    with pytest.raises(ValidationError, match="1 validation error"):
        KeyIn(role="reader", collections=("a b",) * MAX_KEY_COLLECTIONS)
