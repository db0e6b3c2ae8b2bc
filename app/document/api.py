"""Complete the OpenAPI document that FastAPI makes with problems, headers, security and examples.

Most problems and headers are derived from the parameters and the role of an operation; a route declares only others.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.types import ASGIApp, Receive, Scope, Send

from app.deps import headers
from app.deps.problems import Problem, Refusal, build_example
from app.deps.server.immediate_answers import ImmediateAnswersMiddleware, ImmediateRoute, Steps
from app.deps.server.security_headers import SecurityHeadersMiddleware
from app.deps.server.unread_bodies import UnreadBodyMiddleware
from app.document.about import API_DESCRIPTION, IDEMPOTENCY_KEY, SECURITY_SCHEMES, TAG_DESCRIPTIONS
from app.document.operations import add_headers, add_problems, derive_problems, may_change_faces

SCHEMA_MODE: JsonSchemaMode = "serialization"


class DocumentedApi(FastAPI):
    """FastAPI with these routers and the complete OpenAPI document."""

    def __init__(self, routers: Sequence[APIRouter], **options: Any) -> None:
        tags = [{"name": name, "description": description} for name, description in TAG_DESCRIPTIONS.items()]
        super().__init__(
            title="Likeness",
            version="1",
            description=API_DESCRIPTION,
            openapi_tags=tags,
            openapi_url=None,  # app/console serves the document too, made once
            docs_url=None,  # FastAPI's pages load scripts from a CDN; app/console serves /docs
            redoc_url=None,
            redirect_slashes=False,  # the redirect would name the host that the client has written
            **options,
        )
        self.documented = [route for router in routers for route in router.routes]
        for route in self.documented:
            if isinstance(route, APIRoute):
                route.unique_id = route.name  # the id of the operation
        # as they are: `include_router` would build each of them again, and match each request twice
        self.router.routes.extend(self.documented)
        self._entrance: ASGIApp = super().__call__

    def answer_at_once(self, route: ImmediateRoute, steps: Steps) -> None:
        """Answer requests to this route before all layers where that is possible: see `ImmediateAnswersMiddleware`."""
        self._entrance = ImmediateAnswersMiddleware(super().__call__, route, steps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._entrance(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Put around everything, the handler of unexpected errors included, what holds for every answer."""
        return SecurityHeadersMiddleware(UnreadBodyMiddleware(super().build_middleware_stack()))

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            _complete_document(document)
            _restore_nulls(document, [r for r in self.documented if isinstance(r, APIRoute)])
        return super().openapi()


def _complete_document(document: dict[str, Any]) -> None:
    parts, all_problems = document["components"], set[Refusal]()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            problems = derive_problems(path, method, operation)
            all_problems |= problems
            add_problems(operation["responses"], problems)
            role, is_stored = operation.get("x-role"), method == "post" and "x-read" not in operation
            add_headers(operation["responses"], is_stored=is_stored, changes=may_change_faces(method, operation))
            operation["responses"] = dict(sorted(operation["responses"].items()))
            operation["security"] = [{scheme: [role]} for scheme in SECURITY_SCHEMES] if role else []
            if role and is_stored:
                operation.setdefault("parameters", []).append({"$ref": "#/components/parameters/IdempotencyKey"})
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    parts["examples"] = {f"{status}.{code}": build_example((status, code)) for status, code in sorted(all_problems)}
    parts["securitySchemes"] = SECURITY_SCHEMES
    parts["parameters"] = {"IdempotencyKey": IDEMPOTENCY_KEY}
    parts["headers"] = headers.build_components()


def _restore_nulls(document: dict[str, Any], routes: Sequence[APIRoute]) -> None:
    """Restore the nulls of examples: FastAPI drops every null of the document, but these fields may not be missing."""
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
    _, whole = TypeAdapter.json_schemas([(model, SCHEMA_MODE, TypeAdapter(model)) for model in models])
    for name, schema in document["components"]["schemas"].items():
        schema |= (
            {"examples": operation["examples"]} if "examples" in (operation := whole["$defs"].get(name, {})) else {}
        )
