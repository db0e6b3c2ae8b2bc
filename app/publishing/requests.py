"""Request that a pointer be moved. It moves at once if nothing is left to compute, else a job does the work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection, get_model
from app.db.tables import Deployment, Job
from app.errors import Conflict, Invalid
from app.galleries.external_descriptors import check_model_suits
from app.galleries.measurements import is_measured_as_corrected
from app.publishing import pointers
from app.publishing.pointers import MoveReason
from app.queue.jobs import enqueue
from app.queue.messages import Publish


@dataclass(frozen=True)
class PublishRequest:
    """What a caller wants to publish.

    tasks: empty means all tasks of the model that are switched on; by: the caller's signature
    version: expected of the first task's deployment; 0 means that it must not exist yet, None any version
    """

    model: str
    tasks: tuple[str, ...] = ()
    override: bool = False
    reason: str = ""
    by: str = ""
    version: int | None = None
    pointer: Literal["champion", "challenger"] = "champion"


def request_publication(session: Session, collection_id: str, request: PublishRequest) -> Job | None:
    """Move the pointers at once, and return None; or return the job that will move them.

    A model with several tasks becomes champion of all tasks that are switched on.
    Raises NotFound, Conflict (archived, a task is off, or it reads what the faces lack), Invalid (a task that the model
    lacks), Stale.
    """
    collection = get_collection(session, collection_id)
    check_model_suits(session, collection, get_model(session, request.model))
    if request.override and not request.reason.strip():
        raise Invalid("an override needs a reason, which is recorded", code="ReasonRequired")
    tasks = _resolve_tasks(session, request)
    pointers.check_version(session, collection_id, tasks[0], request.version)
    if _try_move_pointers(session, collection_id, request, tasks):
        return None
    message = Publish(
        collection=collection_id,
        tasks=tasks,
        model=request.model,
        override=request.override,
        reason=request.reason,
        by=request.by,
        version=request.version,
        pointer=request.pointer,
    )
    return enqueue(session, message)


def _resolve_tasks(session: Session, request: PublishRequest) -> tuple[str, ...]:
    """Return the requested tasks and, for a champion, all other tasks of the model that are switched on."""
    served: list[str] = pointers.get_usable_model(session, request.model).manifest["tasks"]
    unknown = [t for t in request.tasks if t not in served]
    if unknown:
        raise Invalid(f"model {request.model} serves {', '.join(served)}, not {', '.join(unknown)}", code="UnknownTask")
    others = [t for t in served if t not in request.tasks] if request.pointer == "champion" else []
    on = pointers.filter_enabled_tasks(session, [*request.tasks, *others])
    off = [t for t in request.tasks or served[:1] if t not in on]
    if off:
        raise Conflict(f"the task {', '.join(off)} is off; an administrator can switch it on", code="TaskDisabled")
    return on


def _try_move_pointers(session: Session, collection_id: str, request: PublishRequest, tasks: Sequence[str]) -> bool:
    """Move the pointers if nothing is left to compute. Returns whether they are as requested. Raises Stale.

    A model that was just trained needs a gate: its training, which holds its job, must not wait for the collection.
    """
    if not _need_no_gate(session, _read_deployments(session, collection_id, tasks), request, tasks):
        return False
    collection = pointers.lock_collection(session, collection_id)
    pointers.check_version(session, collection_id, tasks[0], request.version)  # others may have moved them meanwhile
    deployments = _read_deployments(session, collection_id, tasks)
    if len(deployments) == len(tasks) and all(_is_in_place(d, request) for d in deployments):
        return True
    if not _need_no_gate(session, deployments, request, tasks):
        return False
    if not pointers.has_all_embeddings(session, collection_id, request.model, tasks):
        return False
    why = MoveReason(request.by, request.reason)
    if request.pointer == "challenger":
        pointers.set_challenger(session, collection, tasks[0], request.model, why)
    else:
        pointers.move_champion(session, collection, request.model, {t: {} for t in tasks}, why)
    return True


def _read_deployments(session: Session, collection_id: str, tasks: Sequence[str]) -> list[Deployment]:
    """Read the deployments as they are now, also those that the session has read before."""
    rows = select(Deployment).where(Deployment.collection_id == collection_id, Deployment.task.in_(tasks))
    return list(session.scalars(rows, execution_options={"populate_existing": True}))


def _is_in_place(deployment: Deployment, request: PublishRequest) -> bool:
    """Whether the pointer names the model already. One that was never measured here is published again."""
    named = deployment.challenger if request.pointer == "challenger" else deployment.champion
    return named == request.model and request.model in deployment.measurements


def _need_no_gate(
    session: Session, deployments: Sequence[Deployment], request: PublishRequest, tasks: Sequence[str]
) -> bool:
    return len(deployments) == len(tasks) and all(_needs_no_gate(session, d, request) for d in deployments)


def _needs_no_gate(session: Session, deployment: Deployment, request: PublishRequest) -> bool:
    """Whether the model was measured here, and needs no gate: it is to be a challenger, or it served."""
    served = request.model in (deployment.champion, deployment.previous)
    is_measured = request.model in deployment.measurements
    is_measured = is_measured and is_measured_as_corrected(session, deployment, request.model)
    return is_measured and (request.pointer == "challenger" or served)
