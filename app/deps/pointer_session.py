"""The session of routes that move pointers. It waits until this process serves what they moved to."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Deployment
from app.deps import AuditDep, CallerDep, EngineDep, ResourcesDep
from app.publishing.pointers import list_moved_deployments
from app.serving.engine import Engine
from app.storage.audit_log.notes import NOTE

SWAP_WAIT_SECONDS = 0.7


def _open_moving(resources: ResourcesDep, engine: EngineDep, caller: CallerDep, note: AuditDep) -> Iterator[Session]:
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
    resources.notifier.notify("jobs")
    resources.notifier.notify("changes")
    for key, version in list_moved_deployments(session).items():
        engine.registry.wait(lambda key=key, version=version: _is_served(engine, key, version), SWAP_WAIT_SECONDS)  # type: ignore[misc]


def _is_served(engine: Engine, key: tuple[str, str], version: int) -> bool:
    served = engine.registry.get(key)
    return served is None or served.version >= version


MoveDep = Annotated[Session, Depends(_open_moving, scope="function")]
