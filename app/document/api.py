"""The OpenAPI document: what FastAPI cannot know of our answers, added to what it finds by itself.

Problems and headers are derived from what an operation takes and needs; a route names only what is special to it.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from app.deps import headers
from app.deps.problems import Problem, Refusal, example
from app.document.about import ABOUT, KEYS, ONCE, TAGS
from app.document.deriving import add_headers, add_problems, refusals

ANSWERED: JsonSchemaMode = "serialization"


class DocumentedApi(FastAPI):
    """FastAPI over these routers, with the whole of their document."""

    def __init__(self, routers: Sequence[APIRouter], **options: Any) -> None:
        tags = [{"name": name, "description": what} for name, what in TAGS.items()]
        super().__init__(
            title="Likeness",
            version="1",
            description=ABOUT,
            openapi_tags=tags,
            docs_url=None,  # FastAPI's pages load scripts from a CDN; app/console serves /docs
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
            **options,
        )
        for router in routers:
            self.include_router(router)
        self.documented = [route for router in routers for route in router.routes]

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _complete(document)
            _bring_back_nulls(document, [r for r in self.documented if isinstance(r, APIRoute)])
        return super().openapi()


def _complete(document: dict[str, Any]) -> None:
    parts, met = document["components"], set[Refusal]()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            refusals_found = refusals(path, method, operation)
            met |= refusals_found
            add_problems(operation["responses"], refusals_found)
            add_headers(method, operation["responses"])
            operation["responses"] = dict(sorted(operation["responses"].items()))
            role = operation.get("x-role")
            operation["security"] = [{scheme: [role]} for scheme in KEYS] if role else []
            if role and method == "post":
                operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IdempotencyKey"})
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    parts["examples"] = {f"{status}.{code}": example((status, code)) for status, code in sorted(met)}
    parts |= {"securitySchemes": KEYS, "parameters": {"IdempotencyKey": ONCE}, "headers": headers.components()}


def _bring_back_nulls(document: dict[str, Any], routes: Sequence[APIRoute]) -> None:
    """FastAPI drops every null of its document, and so those of examples, whose fields may be null but not missing."""
    models = {
        model
        for route in routes
        for model in (
            route.response_model,
            *(operation.get("model") for operation in route.responses.values()),
            *(field.field_info.annotation for field in route.dependant.body_params),
        )
        if model is not None
    }
    _, whole = TypeAdapter.json_schemas([(model, ANSWERED, TypeAdapter(model)) for model in models])
    for name, schema in document["components"]["schemas"].items():
        schema |= (
            {"examples": operation["examples"]} if "examples" in (operation := whole["$defs"].get(name, {})) else {}
        )
