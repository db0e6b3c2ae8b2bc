"""Read and change when a deployment is trained again without being asked."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from app.deps import ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.deployment_path import DeploymentPath, VersionedPath
from app.deps.headers import describe_headers
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, LARGE_JSON, OPERATOR
from app.deps.scopes import COLLECTION
from app.training_policies import service
from app.training_policies.schemas import TrainingPolicyIn, TrainingPolicyOut

router = APIRouter(prefix="/v1/collections/{collection}/deployments/{task}/training-policy", tags=["trainings"])
PathDep = Annotated[DeploymentPath, Depends()]
VersionedPathDep = Annotated[VersionedPath, Depends()]
SHOWN: dict[int | str, dict[str, Any]] = {200: describe_headers("ETag")}
CHANGES = {
    **ADMIN,
    **COLLECTION,
    **LARGE_JSON,
    **declare_problems(
        (409, "ExternalDescriptor"),
        (409, "NotInstalled"), (422, "UnknownComponent"), (422, "UnknownTask"), (422, "TaskDisabled"),
        (503, "ModelUnavailable"),
    ),
}  # fmt: skip


@router.get("", summary="Look at a training policy", openapi_extra=OPERATOR | COLLECTION, responses=SHOWN)
def get_training_policy(path: PathDep, session: ReadDep, response: Response) -> TrainingPolicyOut:
    """The policy, whether a training is due now and if not why, when the next one may start, and what became of the
    last one. The ETag is for `If-Match`."""
    return service.describe_policy(session, path, response)


@router.patch(
    "", summary="Change a training policy", openapi_extra=CHANGES | audit_as("training-policy.change"), responses=SHOWN
)
def change_training_policy(
    path: VersionedPathDep, body: TrainingPolicyIn, session: WriteDep, resources: ResourcesDep, response: Response
) -> TrainingPolicyOut:
    """Sets the fields that the body states. The first training of a schedule counts from the time when its trigger is
    set, and so do further labels. 412 if `If-Match` is out of date."""
    return service.change_policy(session, resources.settings, path, body, response)
