"""Tasks: what "the same" means, for example the same person or the same age."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.db.field_types import TaskName
from app.deps import ReadDep, WriteDep
from app.deps.audit import audit_as
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN, READER
from app.deps.scopes import INSTALLATION, NOTHING
from app.tasks import service
from app.tasks.schemas import TaskIn, TaskOut, TasksOut

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])
Name = Annotated[TaskName, Path(description="identity, age, expression, or one of your own")]


@router.get("", summary="List tasks", openapi_extra=READER | NOTHING)
def list_tasks(session: ReadDep) -> TasksOut:
    """All tasks by name, also those that are switched off."""
    return TasksOut(tasks=[TaskOut.model_validate(t) for t in service.list_tasks(session)])


@router.get("/{name}", summary="Look at a task", openapi_extra=READER | NOTHING)
def get_task(name: Name, session: ReadDep) -> TaskOut:
    """What "the same" means for this task, and whether it is switched on."""
    return TaskOut.model_validate(service.get_task(session, name))


@router.put(
    "/{name}",
    status_code=201,
    summary="Make a task, or switch it on or off",
    openapi_extra={**ADMIN, **INSTALLATION, **declare_problems((409, "ResourceInUse"))} | audit_as("task.put"),
    responses={200: {"model": TaskOut, "description": "the task existed already"}},
)
def put_task(name: Name, body: TaskIn, session: WriteDep, response: Response) -> TaskOut:
    """201 if the task is new, 200 if it existed already. Age and expression are off until somebody switches them on."""
    task, new = service.put_task(session, name, body)
    response.status_code = 201 if new else 200
    return TaskOut.model_validate(task)
