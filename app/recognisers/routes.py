"""Recognisers: what can be used, and letting a collection use one."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from app.db.field_types import CollectionName
from app.deps import CallerDep, ReadDep, ResourcesDep
from app.deps.job_response import JobOut
from app.deps.moving import MoveDep
from app.deps.problems import refuses
from app.deps.roles import ADMIN, READER
from app.recognisers import service
from app.recognisers.schemas import RecognisersOut, UsedRecogniserOut, UseRecogniserIn

router = APIRouter(prefix="/v1", tags=["recognisers"])
CollectionId = Annotated[CollectionName, Path()]
USED: dict[int | str, dict[str, Any]] = {
    200: {"model": UsedRecogniserOut, "description": "it serves already, or did before and serves again"},
    202: {"model": JobOut},
}
USES = {
    **ADMIN,
    **refuses(
        (409, "NotInstalled"),
        (409, "CropMissing"),
        (409, "ResourceInUse"),
        (422, "UnknownComponent"),
        (422, "ReasonRequired"),
        (503, "ModelUnavailable"),
    ),
}


@router.get("/recognisers", summary="List recognisers", openapi_extra=READER)
def list_recognisers(session: ReadDep, resources: ResourcesDep, caller: CallerDep) -> RecognisersOut:
    """What Likeness knows, installed or not, and what the operator registered by command or in the settings."""
    return service.list_all(session, resources, caller)


@router.post(
    "/collections/{collection}:use-recogniser",
    summary="Use a recogniser",
    openapi_extra=USES,
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
    """Describes the stored crops anew and lets them be searched by the recogniser's own distance; no photo is sent
    again, and ids, names and labels stay.

    It is published as any model is: embedded beside the live index, judged by the gate, then the pointers move. 202
    with that job, or 200 where nothing is left to compute. A refusal is the job's problem `GateRefused` with its
    `reasons`. `POST .../deployments/identity:rollback` goes back.
    """
    return service.use(session, resources, collection, body, caller, response)
