"""List, read and change deployments: publish, roll back, compare models, set the challenger."""

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
from app.deps import CallerDep, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.deployment_path import DeploymentPath, VersionedPath
from app.deps.headers import describe_headers
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.pointer_session import MoveDep
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, READER
from app.deps.scopes import COLLECTION

router = APIRouter(prefix="/v1/collections/{collection}/deployments", tags=["deployments"], route_class=AnswerRoute)
PathDep = Annotated[DeploymentPath, Depends()]
VersionedPathDep = Annotated[VersionedPath, Depends()]
SHOWN: dict[int | str, dict[str, Any]] = {200: describe_headers("ETag")}
MOVED: dict[int | str, dict[str, Any]] = {
    200: {"model": DeploymentOut, "description": "done", **describe_headers("ETag")},
    202: {"model": JobOut},
}
SETS = (
    (409, "ExternalDescriptor"), (409, "ResourceInUse"), (409, "ModelDamaged"), (409, "TaskDisabled"),
    (422, "UnknownTask"),
)  # fmt: skip
PUBLISHES = {**ADMIN, **COLLECTION, **declare_problems(*SETS, (422, "ReasonRequired"))}


@router.get("", summary="List deployments", openapi_extra=READER | COLLECTION)
def list_deployments(
    collection: Annotated[CollectionName, Path()], session: ReadDep, resources: ResourcesDep
) -> DeploymentsOut:
    """The deployments of a collection, one for each task that it can be searched by."""
    return DeploymentsOut(deployments=service.list_deployments(session, resources.models, collection))


@router.get("/{task}", summary="Look at a deployment", openapi_extra=READER | COLLECTION, responses=SHOWN)
def get_deployment(path: PathDep, session: ReadDep, resources: ResourcesDep, response: Response) -> DeploymentOut:
    """The pointers, what was measured of their models here, and the history of moves. The ETag is for `If-Match`."""
    return service.describe_deployment(session, resources.models, path, response)


@router.patch(
    "/{task}",
    summary="Change a deployment",
    openapi_extra=ADMIN | COLLECTION | audit_as("deployment.change"),
    responses=SHOWN,
)
def change_deployment(
    path: VersionedPathDep, body: DeploymentIn, session: WriteDep, resources: ResourcesDep, response: Response
) -> DeploymentOut:
    """Sets the default rate at which searches may name strangers, which takes effect within a second, what happens to
    models that break labels, how votes weigh, or the share of searches that the challenger answers too. 412 if
    `If-Match` is out of date, because a pointer has moved."""
    return service.change_deployment(session, resources.models, path, body, response)


@router.post(
    "/{task}:publish",
    summary="Publish a model",
    openapi_extra=PUBLISHES | audit_as("model.publish"),
    response_model=None,
    responses=MOVED,
)
def publish(
    path: VersionedPathDep,
    body: PublishIn,
    session: MoveDep,
    resources: ResourcesDep,
    caller: CallerDep,
    response: Response,
) -> DeploymentOut | JobOut:
    """Embeds all faces beside the live index, asks the gate, and moves the pointers of all tasks of the model.

    202 with a job, or 200 if nothing is left to compute. 412 if `If-Match` is out of date; if the pointers move later,
    the job fails with the same code. If the gate refuses, the job's problem is `GateRefused`, with `reasons`.
    """
    return service.publish_model(session, resources.models, path, body, caller, response)


@router.post(
    "/{task}:rollback",
    summary="Roll back",
    openapi_extra={**ADMIN, **COLLECTION, **declare_problems((409, "ResourceInUse"), (409, "ModelDamaged"))}
    | audit_as("model.roll-back"),
    response_model=None,
    responses=MOVED,
)
def roll_back(
    path: VersionedPathDep,
    session: MoveDep,
    resources: ResourcesDep,
    caller: CallerDep,
    response: Response,
    body: RollbackIn | None = None,
) -> DeploymentOut | JobOut:
    """The previous model serves again, at once. A second roll back undoes the first. 409 if there is no previous
    model, or `ModelDamaged` if its files are damaged."""
    return service.roll_back(session, resources.models, path, body, caller, response)


@router.post(
    "/{task}:compare",
    status_code=202,
    summary="Compare two models",
    openapi_extra={**ADMIN, **COLLECTION, **declare_problems((409, "TaskDisabled"), (422, "UnknownTask"))}
    | audit_as("model.compare"),
)
def compare(path: PathDep, body: CompareIn, session: WriteDep, response: Response) -> JobOut:
    """Starts a job that measures both models on this collection's people, preferably on people unknown to both.

    Its result has for each model `mAP`, `1-call@1`, `1-call@10`, `named_rightly` and `strangers_named` with intervals;
    the paired `difference`, second minus first, with interval and p; `measured_on`, the people that were used; and
    `gate`, its verdict if the second were to replace the first. With too little data, the job fails with `NotMeasured`.
    """
    return service.compare_models(session, path, body, response)


@router.put(
    "/{task}/challenger",
    summary="Set the challenger",
    openapi_extra={**ADMIN, **COLLECTION, **declare_problems(*SETS)} | audit_as("deployment.set-challenger"),
    response_model=None,
    responses=MOVED,
)
def put_challenger(
    path: VersionedPathDep,
    body: ChallengerIn,
    session: MoveDep,
    resources: ResourcesDep,
    caller: CallerDep,
    response: Response,
) -> DeploymentOut | JobOut:
    """Sets the model that can be searched beside the champion; null removes it.

    202 if faces must be embedded, or the gallery be measured, first.
    """
    return service.set_challenger(session, resources.models, path, body, caller, response)
