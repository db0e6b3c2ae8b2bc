"""The session of routes that move pointers. It waits until this process serves what they moved to."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Collection, Deployment
from app.deps import AuditDep, CallerDep, EngineDep, ResourcesDep
from app.deps.idempotency.stored_answers import store_answer
from app.deps.key_secrets import check_still_opened
from app.publishing.pointers import list_moved_deployments
from app.serving.deployments import DeploymentKey
from app.serving.engine import Engine
from app.storage.audit_log.notes import NOTE

SWAP_WAIT_SECONDS = 0.7


def _open_moving(
    resources: ResourcesDep, engine: EngineDep, caller: CallerDep, note: AuditDep, request: Request
) -> Iterator[Session]:
    """Like WriteDep, and wait for the swap, at most SWAP_WAIT_SECONDS: what takes longer to load is served later.

    A pointer cannot be moved to a model whose files are damaged: Conflict (ModelDamaged).
    """
    with writing(resources.database, caller.collections) as session:
        session.info[NOTE] = note
        yield session
        for key in list_moved_deployments(session):
            model = session.get_one(Deployment, key).history[-1]["model"]
            if model is not None:
                resources.models.check(model)
        check_still_opened(session, caller)
        store_answer(session, request)
        moved = {
            key: (session.get_one(Collection, key[0]).created_at, version)
            for key, version in list_moved_deployments(session).items()
        }
    resources.notifier.notify("jobs")
    resources.notifier.notify("changes")
    for key, move in moved.items():
        engine.registry.wait(lambda key=key, move=move: _is_served(engine, key, *move), SWAP_WAIT_SECONDS)  # type: ignore[misc]


def _is_served(engine: Engine, key: DeploymentKey, collection_created_at: float, version: int) -> bool:
    """Whether this version, or a later one, is served. A deleted collection of the same name may be served still."""
    served = engine.registry.get(key)
    return served is None or (served.collection_created_at, served.version) >= (collection_created_at, version)


MoveDep = Annotated[Session, Depends(_open_moving, scope="function")]
