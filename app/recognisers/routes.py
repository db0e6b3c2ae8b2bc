"""List recognisers, and let a collection use one."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName
from app.deps import CallerDep, ReadDep, ResourcesDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.pointer_session import MoveDep
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, READER
from app.deps.scopes import COLLECTION, ROWS
from app.recognisers import service
from app.recognisers.schemas import RecognisersOut, UsedRecogniserOut, UseRecogniserIn

router = APIRouter(prefix="/v1", tags=["recognisers"], route_class=AnswerRoute)
CollectionId = Annotated[CollectionName, Path()]
USED: dict[int | str, dict[str, Any]] = {
    200: {"model": UsedRecogniserOut, "description": "the recogniser serves already, or serves again at once"},
    202: {"model": JobOut},
}
USES = {
    **ADMIN,
    **COLLECTION,
    **declare_problems(
        (409, "ExternalDescriptor"),
        (409, "NotInstalled"),
        (409, "CropMissing"),
        (409, "ResourceInUse"),
        (422, "UnknownComponent"),
        (422, "ReasonRequired"),
        (503, "ModelUnavailable"),
    ),
}


@router.get("/recognisers", summary="List recognisers", openapi_extra=READER | ROWS)
def list_recognisers(session: ReadDep, resources: ResourcesDep) -> RecognisersOut:
    """The recognisers that Likeness knows, installed or not, and those that the operator registered."""
    return service.list_recognisers_in_use(session, resources)


@router.post(
    "/collections/{collection}:use-recogniser",
    summary="Use a recogniser",
    openapi_extra=USES | audit_as("recogniser.use"),
    response_model=None,
    responses=USED,
)
def use_recogniser(
    collection: CollectionId,
    body: UseRecogniserIn,
    session: MoveDep,
    resources: ResourcesDep,
    caller: CallerDep,
    response: Response,
) -> UsedRecogniserOut | JobOut:
    """Describes the stored crops with the recogniser, and searches them by its own distance. No photo is sent again;
    ids, names and labels are kept.

    The recogniser is published like any model: all faces are embedded beside the live index, the gate judges, then the
    pointers move. 202 with that job, or 200 if nothing is left to compute. If the gate refuses, the job's problem is
    `GateRefused`, with `reasons`. `POST .../deployments/identity:rollback` restores the previous model.
    """
    return service.use_recogniser(session, resources, collection, body, caller, response)
