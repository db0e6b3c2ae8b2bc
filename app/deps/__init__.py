"""The dependencies of routes. Those that only return a value are async, so that they need no thread."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Query, Request
from sqlalchemy.orm import Session

from app.db import examples
from app.db.session import reading, writing
from app.deps.caller import Caller
from app.deps.idempotency.stored_answers import store_answer
from app.deps.key_secrets import check_still_opened
from app.resources import Resources
from app.serving.engine import Engine
from app.storage.audit_log.notes import NOTE, AuditNote


async def get_resources(request: Request) -> Resources:
    return request.state.resources  # type: ignore[no-any-return]


async def get_engine(request: Request) -> Engine:
    return request.state.engine  # type: ignore[no-any-return]


async def get_caller(request: Request) -> Caller:
    """Return the holder of the key, which the middleware has checked."""
    return request.state.caller  # type: ignore[no-any-return]


async def get_audit_note(request: Request) -> AuditNote:
    return request.state.audit_note  # type: ignore[no-any-return]


ResourcesDep = Annotated[Resources, Depends(get_resources)]
EngineDep = Annotated[Engine, Depends(get_engine)]
CallerDep = Annotated[Caller, Depends(get_caller)]
AuditDep = Annotated[AuditNote, Depends(get_audit_note)]


def _open_reading(resources: ResourcesDep, caller: CallerDep, note: AuditDep) -> Iterator[Session]:
    """A key that is bound to collections gets a session that sees only their rows."""
    with reading(resources.database, caller.collections) as session:
        session.info[NOTE] = note
        yield session


def _open_writing(resources: ResourcesDep, caller: CallerDep, note: AuditDep, request: Request) -> Iterator[Session]:
    """Commit if the route returns, roll back if it raises; both happen before the answer is sent.

    A key may revoke or rotate itself, but commits nothing else after its revocation.
    """
    with writing(resources.database, caller.collections) as session:
        session.info[NOTE] = note
        yield session
        if request.path_params.get("key_id") != caller.key_id:
            check_still_opened(session, caller)
        store_answer(session, request)
    resources.notifier.notify("jobs")
    resources.notifier.notify("changes")


ReadDep = Annotated[Session, Depends(_open_reading, scope="function")]
WriteDep = Annotated[Session, Depends(_open_writing, scope="function")]

Limit = Annotated[int, Query(ge=1, le=1000, description="the largest number of entries to return")]
NextToken = Annotated[
    str | None, Query(description="the `next_token` of the previous page", examples=[examples.NEXT_TOKEN])
]
