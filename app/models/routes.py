"""List, read, archive and publish models."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from app.db.field_types import ModelName
from app.db.tables import ModelRecord
from app.deps import CallerDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.paging import read_page
from app.deps.pointer_session import MoveDep
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, LARGE_JSON, READER
from app.deps.scopes import MODEL, ROWS
from app.models import service
from app.models.schemas import ModelInFull, ModelsOut, PublishAtIn, PublishedOut, RefitIn, RefitStarted

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=AnswerRoute)
ModelId = Annotated[ModelName, Path()]
PUBLISHES = declare_problems(
    (409, "ExternalDescriptor"),
    (409, "ResourceInUse"),
    (409, "ModelDamaged"),
    (409, "TaskDisabled"),
    (422, "UnknownTask"),
    (422, "ReasonRequired"),
)
PUBLISHED: dict[int | str, dict[str, Any]] = {
    200: {"model": PublishedOut, "description": "the model serves already"},
    202: {"model": JobOut},
}


@router.get("", summary="List models", openapi_extra=READER | ROWS)
def list_models(session: ReadDep, limit: Limit = 100, next_token: NextToken = None) -> ModelsOut:
    """All models by id, also archived ones. The ids of trained models are in the order of their training. A bound key
    sees the models of its collections, and those that have learned from none."""
    rows, token = read_page(session, ModelRecord, ModelRecord.id, limit, next_token)
    return ModelsOut(models=service.describe_models(session, rows), next_token=token)


@router.get("/{model}", summary="Look at a model", openapi_extra=READER | MODEL)
def get_model(model: ModelId, session: ReadDep, caller: CallerDep) -> ModelInFull:
    """How the model was made, from which training and labels, its report, and where it is deployed. Readers see no
    report and no plan. A key that is not bound to all collections that it has learned from sees no training at all."""
    return service.describe_model(session, model, caller)


@router.post(
    "/{model}:archive",
    summary="Archive a model",
    openapi_extra={**ADMIN, **MODEL, **declare_problems((409, "ResourceInUse"))} | audit_as("model.archive"),
)
def archive_model(model: ModelId, session: WriteDep, caller: CallerDep) -> ModelInFull:
    """An archived model can be read, but no longer published. 409 while a pointer of a deployment names it."""
    return service.archive_model(session, model, caller)


@router.post(
    "/{model}:publish",
    summary="Publish a model",
    openapi_extra={**ADMIN, **MODEL, **PUBLISHES} | audit_as("model.publish"),
    response_model=None,
    responses=PUBLISHED,
)
def publish_model(
    model: ModelId, body: PublishAtIn, session: MoveDep, caller: CallerDep, response: Response
) -> PublishedOut | JobOut:
    """Like publishing at the deployment of each task: 202 with a job, or 200 if the model serves already."""
    return service.publish_model(session, model, body, caller, response)


@router.post(
    "/{model}:refit",
    status_code=202,
    summary="Refit a model without some people",
    openapi_extra={**ADMIN, **MODEL, **LARGE_JSON, **declare_problems((409, "CannotForget"), (404, "ResourceNotFound"))}
    | audit_as("model.refit"),
)
def refit_model(
    model: ModelId, body: RefitIn, session: WriteDep, resources: ResourcesDep, response: Response
) -> RefitStarted:
    """Starts a job that repeats the model's training, on the data that it read, without these subjects. The result is
    bit for bit the model that never saw them, on a machine of the same type. It serves only after it is published."""
    return service.refit_model(session, resources.installation_key, model, body, response)
