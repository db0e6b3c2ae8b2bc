"""For routes that move pointers: when they answer, this process serves what they moved to."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.orm import Session

from app.db.session import writing
from app.deps import EngineDep, ResourcesDep
from app.publishing.pointers import moved_deployments
from app.serving.engine import Engine

PATIENCE_SECONDS = 0.7


def _moving(resources: ResourcesDep, engine: EngineDep) -> Iterator[Session]:
    """As WriteDep. The swap is waited for a moment only: what takes longer to load is served when it is."""
    with writing(resources.database) as session:
        yield session
    resources.notifier.notify("jobs")
    resources.notifier.notify("changes")
    for key, version in moved_deployments(session).items():
        engine.registry.wait(lambda key=key, version=version: _serves(engine, key, version), PATIENCE_SECONDS)  # type: ignore[misc]


def _serves(engine: Engine, key: tuple[str, str], version: int) -> bool:
    served = engine.registry.get(key)
    return served is None or served.version >= version


MoveDep = Annotated[Session, Depends(_moving, scope="function")]
