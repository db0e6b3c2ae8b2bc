"""Asking for a pointer to be moved: done at once where nothing is left to compute, else written down as a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Deployment, Job
from app.errors import Conflict, Invalid
from app.publishing import pointers
from app.publishing.pointers import MoveReason
from app.queue.jobs import enqueue
from app.queue.messages import Publish


@dataclass(frozen=True)
class PublishRequest:
    """What a caller wants. version: of the first task's deployment, 0 for none yet, None where any will do."""

    model: str
    tasks: tuple[str, ...] = ()
    override: bool = False
    reason: str = ""
    by: str = ""
    version: int | None = None
    pointer: Literal["champion", "challenger"] = "champion"


def request_publication(session: Session, collection_id: str, wish: PublishRequest) -> Job | None:
    """The job that will do it, or None: it is done.

    A model that is to serve and knows several tasks is moved for all that are switched on.
    Raises NotFound, Conflict (archived, or a task is off), Invalid (a task that the model lacks), Stale.
    """
    get_collection(session, collection_id)
    if wish.override and not wish.reason.strip():
        raise Invalid("an override needs a reason, which is kept on record", code="ReasonRequired")
    tasks = _resolve_tasks(session, wish)
    pointers.check_version(session, collection_id, tasks[0], wish.version)
    if _try_move_pointers(session, collection_id, wish, tasks):
        return None
    message = Publish(
        collection=collection_id,
        tasks=tasks,
        model=wish.model,
        override=wish.override,
        reason=wish.reason,
        by=wish.by,
        version=wish.version,
        pointer=wish.pointer,
    )
    return enqueue(session, message)


def _resolve_tasks(session: Session, wish: PublishRequest) -> tuple[str, ...]:
    """The tasks asked for and, for a champion, all others that the model serves and that are switched on."""
    served: list[str] = pointers.get_usable_model(session, wish.model).manifest["tasks"]
    strange = [t for t in wish.tasks if t not in served]
    if strange:
        raise Invalid(f"model {wish.model} serves {', '.join(served)}, not {', '.join(strange)}", code="UnknownTask")
    others = [t for t in served if t not in wish.tasks] if wish.pointer == "champion" else []
    on = pointers.enabled_tasks(session, [*wish.tasks, *others])
    off = [t for t in wish.tasks or served[:1] if t not in on]
    if off:
        raise Conflict(f"the task {', '.join(off)} is off; an administrator can switch it on", code="TaskDisabled")
    return on


def _try_move_pointers(session: Session, collection_id: str, wish: PublishRequest, tasks: Sequence[str]) -> bool:
    """Whether it is so already, or nothing was left to compute and it is so now."""
    rows = select(Deployment).where(Deployment.collection_id == collection_id, Deployment.task.in_(tasks))
    deployments = list(session.scalars(rows))
    if len(deployments) == len(tasks) and all(_is_in_place(d, wish) for d in deployments):
        return True
    if len(deployments) < len(tasks) or not all(_needs_no_gate(d, wish) for d in deployments):
        return False
    if not pointers.has_all_embeddings(session, collection_id, wish.model, tasks):
        return False
    collection, why = pointers.lock_collection(session, collection_id), MoveReason(wish.by, wish.reason)
    if wish.pointer == "challenger":
        pointers.set_challenger(session, collection, tasks[0], wish.model, why)
    else:
        pointers.move_champion(session, collection, wish.model, {t: {} for t in tasks}, why)
    return True


def _is_in_place(deployment: Deployment, wish: PublishRequest) -> bool:
    """The pointer names it already; a champion that was never measured here is published again, to be measured."""
    if wish.pointer == "challenger":
        return deployment.challenger == wish.model
    return deployment.champion == wish.model and wish.model in deployment.measurements


def _needs_no_gate(deployment: Deployment, wish: PublishRequest) -> bool:
    """It needs no gate: it served here, was measured, and its embeddings were kept current."""
    return wish.pointer == "challenger" or (
        wish.model in (deployment.champion, deployment.previous) and wish.model in deployment.measurements
    )
