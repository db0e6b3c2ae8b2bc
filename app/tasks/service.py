"""List, read and change tasks."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import BUILT_IN_TASK, Task
from app.errors import Conflict, NotFound
from app.tasks.schemas import TaskIn


def list_tasks(session: Session) -> list[Task]:
    return list(session.scalars(select(Task).order_by(Task.name)))


def get_task(session: Session, name: str) -> Task:
    """Return the task. Raises NotFound."""
    task = session.get(Task, name)
    if task is None:
        raise NotFound(f"no task {name!r}")
    return task


def put_task(session: Session, name: str, request: TaskIn) -> tuple[Task, bool]:
    """Create or change a task; returns it, and whether it is new. A new one is enabled by default. Raises Conflict."""
    if name == BUILT_IN_TASK and request.enabled is False:
        raise Conflict("identity is built in and cannot be switched off")
    task = session.get(Task, name)
    new = task is None
    if task is None:
        task = Task(name=name, enabled=True, description="")
        session.add(task)
    task.description = task.description if request.description is None else request.description
    task.enabled = task.enabled if request.enabled is None else request.enabled
    session.flush()
    return task, new
