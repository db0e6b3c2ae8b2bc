from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Task
from app.errors import Conflict, NotFound
from app.tasks.schemas import TaskIn

BUILT_IN = "identity"


def every(session: Session) -> list[Task]:
    return list(session.scalars(select(Task).order_by(Task.name)))


def get(session: Session, name: str) -> Task:
    task = session.get(Task, name)
    if task is None:
        raise NotFound(f"no task {name!r}")
    return task


def put(session: Session, name: str, told: TaskIn) -> tuple[Task, bool]:
    """The task, and whether it is new: one's own are switched on unless told otherwise. Raises Conflict."""
    if name == BUILT_IN and told.enabled is False:
        raise Conflict("identity is built in and cannot be switched off")
    task = session.get(Task, name)
    new = task is None
    if task is None:
        task = Task(name=name, enabled=True, description="")
        session.add(task)
    task.description = task.description if told.description is None else told.description
    task.enabled = task.enabled if told.enabled is None else told.enabled
    session.flush()
    return task, new
