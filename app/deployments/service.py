from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Path, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.field_types import CollectionName, TaskName
from app.db.lookups import get_collection, get_model
from app.db.tables import POINTERS, Deployment, Job
from app.deployments.schemas import ChallengerIn, CompareIn, DeploymentIn, DeploymentOut, PublishIn, RollbackIn
from app.deps.caller import Caller
from app.deps.job_response import JobOut, accepted
from app.errors import Conflict, Invalid, NotFound
from app.publishing import pointers, requests
from app.publishing.pointers import MoveReason
from app.publishing.requests import PublishRequest
from app.queue.jobs import enqueue
from app.queue.messages import Compare, Publish


@dataclass(frozen=True)
class DeploymentPath:
    """A deployment as a path names it."""

    collection: Annotated[CollectionName, Path()]
    task: Annotated[TaskName, Path()]


@dataclass(frozen=True)
class VersionedPath(DeploymentPath):
    """And the version at which the caller expects it."""

    if_match: Annotated[
        str | None, Header(description="the ETag that it must still have; without it, any will do", examples=['"3"'])
    ] = None

    @property
    def version(self) -> int | None:
        """None: any will do. Raises Invalid where If-Match is no ETag of ours."""
        tag = (self.if_match or "*").strip().removeprefix("W/").strip('"')
        if tag == "*":
            return None
        if not tag.isdigit():
            raise Invalid('If-Match holds the ETag of the deployment, such as "3"')
        return int(tag)


def everywhere(session: Session, collection: str) -> list[DeploymentOut]:
    """Every task's. Raises NotFound."""
    get_collection(session, collection)
    rows = select(Deployment).where(Deployment.collection_id == collection).order_by(Deployment.task)
    return [DeploymentOut.of(d) for d in session.scalars(rows)]


def change(session: Session, path: DeploymentPath, body: DeploymentIn, response: Response) -> DeploymentOut:
    """Raises NotFound."""
    deployment = pointers.get_deployment(session, path.collection, path.task)
    deployment.default_fpir = body.default_fpir
    session.flush()
    return shown(session, path, response)


def shown(session: Session, path: DeploymentPath, response: Response) -> DeploymentOut:
    """With its version as the ETag. Raises NotFound."""
    deployment = pointers.get_deployment(session, path.collection, path.task)
    response.headers["ETag"] = f'"{deployment.version}"'
    return DeploymentOut.of(deployment)


def publish(
    session: Session, path: VersionedPath, body: PublishIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """200 where it serves already or can at once; else 202. Raises as `requests.request_publication` does."""
    wish = PublishRequest(body.model, (path.task,), body.override, body.reason, caller.signature, path.version)
    return _answered(session, path, requests.request_publication(session, path.collection, wish), response)


def challenge(
    session: Session, path: VersionedPath, body: ChallengerIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """As `publish`; no model takes the challenger away. Raises the same."""
    if body.model is not None:
        wish = PublishRequest(body.model, (path.task,), by=caller.signature, version=path.version, pointer="challenger")
        return _answered(session, path, requests.request_publication(session, path.collection, wish), response)
    collection = pointers.lock_collection(session, path.collection)
    pointers.check_version(session, collection.id, path.task, path.version)
    pointers.set_challenger(session, collection, path.task, None, MoveReason(caller.signature))
    return shown(session, path, response)


def roll_back(
    session: Session, path: VersionedPath, body: RollbackIn | None, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """At once, since ingest keeps the previous model's embeddings; a job where some are missing all the same."""
    collection = pointers.lock_collection(session, path.collection)
    pointers.check_version(session, collection.id, path.task, path.version)
    why = MoveReason(caller.signature, body.reason if body else "")
    previous = pointers.get_deployment(session, collection.id, path.task).previous
    if previous is None or pointers.has_all_embeddings(session, collection.id, previous, [path.task]):
        pointers.roll_back(session, collection, path.task, why)
        return shown(session, path, response)
    repair = Publish(
        collection=collection.id, tasks=(path.task,), model=previous, override=True, reason=why.reason, by=why.by
    )
    return _answered(session, path, enqueue(session, repair), response)


def compare(session: Session, path: DeploymentPath, body: CompareIn, response: Response) -> JobOut:
    """202 with the job. Raises NotFound, Conflict (the task is off), Invalid (a task that a model lacks, or one model
    named twice)."""
    get_collection(session, path.collection)
    if not pointers.enabled_tasks(session, [path.task]):
        raise Conflict(f"the task {path.task} is off; an administrator can switch it on", code="TaskDisabled")
    first, second = (_resolved(session, path, name) for name in body.models)
    if first == second:
        raise Invalid(f"both are {first}: name two different models to compare")
    job = enqueue(session, Compare(collection=path.collection, task=path.task, models=(first, second)))
    accepted(response, job)
    return JobOut.of(job)


def _resolved(session: Session, path: DeploymentPath, name: str) -> str:
    """The id of a model that serves the task, named by it or by a pointer."""
    if name in POINTERS:
        deployment = pointers.get_deployment(session, path.collection, path.task)
        pointed: str | None = getattr(deployment, name)
        if pointed is None:
            raise NotFound(f"the task {path.task!r} of {path.collection!r} has no {name}")
        name = pointed
    model = get_model(session, name)
    if path.task not in model.manifest["tasks"]:
        served = ", ".join(model.manifest["tasks"])
        raise Invalid(f"model {name} serves {served}, not {path.task}", code="UnknownTask")
    return model.id


def _answered(session: Session, path: DeploymentPath, job: Job | None, response: Response) -> DeploymentOut | JobOut:
    if job is None:
        return shown(session, path, response)
    response.status_code = 202
    accepted(response, job)
    return JobOut.of(job)
