"""What routes are given. What only hands over is async: a plain function would visit a thread for it."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Query, Request
from sqlalchemy.orm import Session

from app.db import examples
from app.db.session import reading, writing
from app.deps.caller import Caller
from app.resources import Resources
from app.serving.engine import Engine


async def resources(request: Request) -> Resources:
    return request.state.resources  # type: ignore[no-any-return]


async def engine(request: Request) -> Engine:
    return request.state.engine  # type: ignore[no-any-return]


async def caller(request: Request) -> Caller:
    """Whose key it is; the middleware has checked it before any body was read."""
    return request.state.caller  # type: ignore[no-any-return]


ResourcesDep = Annotated[Resources, Depends(resources)]
EngineDep = Annotated[Engine, Depends(engine)]
CallerDep = Annotated[Caller, Depends(caller)]


def _reading(resources: ResourcesDep) -> Iterator[Session]:
    with reading(resources.database) as session:
        yield session


def _writing(resources: ResourcesDep) -> Iterator[Session]:
    """Kept if the request answered, dropped if it raised; closed before the answer leaves."""
    with writing(resources.database) as session:
        yield session
    resources.notifier.notify("jobs")
    resources.notifier.notify("changes")


ReadDep = Annotated[Session, Depends(_reading, scope="function")]
WriteDep = Annotated[Session, Depends(_writing, scope="function")]

Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
NextToken = Annotated[
    str | None, Query(description="the `next_token` of the page before", examples=[examples.NEXT_TOKEN])
]
