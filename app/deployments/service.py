from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Path, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.field_types import CollectionName, TaskName
from app.db.tables import Collection, Deployment, Job, ModelRecord
from app.deployments.schemas import ChallengerIn, CompareIn, DeploymentIn, DeploymentOut, PublishIn, RollbackIn
from app.deps.caller import Caller
from app.deps.job_response import JobOut, accepted
from app.errors import Conflict, Invalid, NotFound
from app.publishing import pointers, requests
from app.publishing.pointers import MoveReason
from app.publishing.requests import PublishRequest
from app.queue.jobs import enqueue
from app.queue.messages import Compare, Publish

POINTERS = ("champion", "challenger", "previous")


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
        told = (self.if_match or "*").strip().removeprefix("W/").strip('"')
        if told == "*":
            return None
        if not told.isdigit():
            raise Invalid('If-Match holds the ETag of the deployment, such as "3"')
        return int(told)


def everywhere(session: Session, collection: str) -> list[DeploymentOut]:
    """Every task's. Raises NotFound."""
    if session.get(Collection, collection) is None:
        raise NotFound(f"no collection {collection!r}")
    rows = select(Deployment).where(Deployment.collection_id == collection).order_by(Deployment.task)
    return [DeploymentOut.of(d) for d in session.scalars(rows)]


def change(session: Session, place: DeploymentPath, body: DeploymentIn, response: Response) -> DeploymentOut:
    """Raises NotFound."""
    deployment = pointers.get_deployment(session, place.collection, place.task)
    deployment.default_fpir = body.default_fpir
    session.flush()
    return shown(session, place, response)


def shown(session: Session, place: DeploymentPath, response: Response) -> DeploymentOut:
    """With its version as the ETag. Raises NotFound."""
    deployment = pointers.get_deployment(session, place.collection, place.task)
    response.headers["ETag"] = f'"{deployment.version}"'
    return DeploymentOut.of(deployment)


def publish(
    session: Session, place: VersionedPath, body: PublishIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """200 where it serves already, or can at once; else 202. See `app.publishing.requests.ask` for what is raised."""
    wish = PublishRequest(body.model, (place.task,), body.override, body.reason, caller.signature, place.version)
    return _answered(session, place, requests.request_publication(session, place.collection, wish), response)


def challenge(
    session: Session, place: VersionedPath, body: ChallengerIn, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """As `publish`; no model takes the challenger away. Raises the same."""
    if body.model is not None:
        wish = PublishRequest(
            body.model, (place.task,), by=caller.signature, version=place.version, pointer="challenger"
        )
        return _answered(session, place, requests.request_publication(session, place.collection, wish), response)
    collection = pointers.lock_collection(session, place.collection)
    pointers.check_version(session, collection.id, place.task, place.version)
    pointers.set_challenger(session, collection, place.task, None, MoveReason(caller.signature))
    return shown(session, place, response)


def roll_back(
    session: Session, place: VersionedPath, body: RollbackIn | None, caller: Caller, response: Response
) -> DeploymentOut | JobOut:
    """At once, since ingest keeps the previous model's embeddings; a job where some are missing all the same."""
    collection = pointers.lock_collection(session, place.collection)
    pointers.check_version(session, collection.id, place.task, place.version)
    why = MoveReason(caller.signature, body.reason if body else "")
    previous = pointers.get_deployment(session, collection.id, place.task).previous
    if previous is None or pointers.has_all_embeddings(session, collection.id, previous, [place.task]):
        pointers.roll_back(session, collection, place.task, why)
        return shown(session, place, response)
    repair = Publish(
        collection=collection.id, tasks=(place.task,), model=previous, override=True, reason=why.reason, by=why.by
    )
    return _answered(session, place, enqueue(session, repair), response)


def compare(session: Session, place: DeploymentPath, body: CompareIn, response: Response) -> JobOut:
    """202 with the job. Raises NotFound, Conflict (the task is off), Invalid (a task that a model lacks, or one model
    named twice)."""
    if session.get(Collection, place.collection) is None:
        raise NotFound(f"no collection {place.collection!r}")
    if not pointers.enabled_tasks(session, [place.task]):
        raise Conflict(f"the task {place.task} is off; an administrator can switch it on", code="TaskDisabled")
    first, second = (_resolved(session, place, name) for name in body.models)
    if first == second:
        raise Invalid(f"both are {first}: name two different models to compare")
    job = enqueue(session, Compare(collection=place.collection, task=place.task, models=(first, second)))
    accepted(response, job)
    return JobOut.of(job)


def _resolved(session: Session, place: DeploymentPath, name: str) -> str:
    """The id of a model that serves the task, named by it or by a pointer."""
    if name in POINTERS:
        deployment = pointers.get_deployment(session, place.collection, place.task)
        found: str | None = getattr(deployment, name)
        if found is None:
            raise NotFound(f"the task {place.task!r} of {place.collection!r} has no {name}")
        name = found
    model = session.get(ModelRecord, name)
    if model is None:
        raise NotFound(f"no model {name!r}")
    if place.task not in model.manifest["tasks"]:
        served = ", ".join(model.manifest["tasks"])
        raise Invalid(f"model {name} serves {served}, not {place.task}", code="UnknownTask")
    return model.id


def _answered(session: Session, place: DeploymentPath, job: Job | None, response: Response) -> DeploymentOut | JobOut:
    if job is None:
        return shown(session, place, response)
    response.status_code = 202
    accepted(response, job)
    return JobOut.of(job)
