"""Deployments: which model serves a task in a collection, published and rolled back."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from app.db.field_types import CollectionName
from app.deployments import service
from app.deployments.schemas import (
    ChallengerIn,
    CompareIn,
    DeploymentIn,
    DeploymentOut,
    DeploymentsOut,
    PublishIn,
    RollbackIn,
)
from app.deployments.service import DeploymentPath, VersionedPath
from app.deps import CallerDep, ReadDep, WriteDep
from app.deps.headers import telling
from app.deps.job_response import JobOut
from app.deps.moving import MoveDep
from app.deps.problems import refuses
from app.deps.roles import ADMIN, READER

router = APIRouter(prefix="/v1/collections/{collection}/deployments", tags=["deployments"])
PathDep = Annotated[DeploymentPath, Depends()]
VersionedPathDep = Annotated[VersionedPath, Depends()]
SHOWN: dict[int | str, dict[str, Any]] = {200: telling("ETag")}
MOVED: dict[int | str, dict[str, Any]] = {
    200: {"model": DeploymentOut, "description": "done", **telling("ETag")},
    202: {"model": JobOut},
}
SETS = ((409, "ResourceInUse"), (409, "TaskDisabled"), (422, "UnknownTask"))
PUBLISHES = {**ADMIN, **refuses(*SETS, (422, "ReasonRequired"))}


@router.get("", summary="List deployments", openapi_extra=READER)
def list_deployments(collection: Annotated[CollectionName, Path()], session: ReadDep) -> DeploymentsOut:
    """One for each task that the collection is searched for."""
    return DeploymentsOut(deployments=service.everywhere(session, collection))


@router.get("/{task}", summary="Look at a deployment", openapi_extra=READER, responses=SHOWN)
def get_deployment(path: PathDep, session: ReadDep, response: Response) -> DeploymentOut:
    """Its pointers, what was measured of them here, and every move. The ETag is for `If-Match`."""
    return service.shown(session, path, response)


@router.patch("/{task}", summary="Change a deployment", openapi_extra=ADMIN, responses=SHOWN)
def change_deployment(path: PathDep, body: DeploymentIn, session: WriteDep, response: Response) -> DeploymentOut:
    """Set the rate at which strangers may be named by searches that ask for no other. It is served within a second."""
    return service.change(session, path, body, response)


@router.post(
    "/{task}:publish", summary="Publish a model", openapi_extra=PUBLISHES, response_model=None, responses=MOVED
)
def publish(
    path: VersionedPathDep, body: PublishIn, session: MoveDep, caller: CallerDep, response: Response
) -> DeploymentOut | JobOut:
    """Re-embeds beside the live index, judges by the gate, moves the pointers of all tasks that the model serves.

    202 with a job, or 200 where nothing is left to compute. 412 where `If-Match` is stale; so does the job fail where
    the pointers move before it comes to that. A refusal is the job's problem `GateRefused` with its `reasons`.
    """
    return service.publish(session, path, body, caller, response)


@router.post(
    "/{task}:rollback",
    summary="Roll back",
    openapi_extra={**ADMIN, **refuses((409, "ResourceInUse"))},
    response_model=None,
    responses=MOVED,
)
def roll_back(
    path: VersionedPathDep, session: MoveDep, caller: CallerDep, response: Response, body: RollbackIn | None = None
) -> DeploymentOut | JobOut:
    """The previous model serves again, at once; twice is back and forth. 409 where none came before."""
    return service.roll_back(session, path, body, caller, response)


@router.post(
    "/{task}:compare",
    status_code=202,
    summary="Compare two models",
    openapi_extra={**ADMIN, **refuses((409, "TaskDisabled"), (422, "UnknownTask"))},
)
def compare(path: PathDep, body: CompareIn, session: WriteDep, response: Response) -> JobOut:
    """A job that measures both on this collection's people, those whom neither has learned from where there are enough.

    Its result: for each model `mAP`, `1-call@1`, `1-call@10`, `named_rightly` and `strangers_named` with intervals; the
    paired `difference` of the second less the first with interval and p; `measured_on`: who could be used; `gate`: what
    it would say of the second in the path of the first. Where too little is known it fails with `NotMeasured`.
    """
    return service.compare(session, path, body, response)


@router.put(
    "/{task}/challenger",
    summary="Set the challenger",
    openapi_extra={**ADMIN, **refuses(*SETS)},
    response_model=None,
    responses=MOVED,
)
def put_challenger(
    path: VersionedPathDep, body: ChallengerIn, session: MoveDep, caller: CallerDep, response: Response
) -> DeploymentOut | JobOut:
    """A model to be searched beside the champion; null takes it away. 202 where faces must be embedded first."""
    return service.challenge(session, path, body, caller, response)
