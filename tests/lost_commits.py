"""Lose the connection to PostgreSQL at a commit that the server carries out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event


@contextmanager
def lose_commit(statement: str, value: str = "") -> Iterator[list[str]]:
    """Commit the first transaction in which a statement begins so, and close its connection before the answer.

    value: what one of the statement's parameters holds. Holds for every database that this process uses.
    Yields a list that has the statement in it as soon as a commit was lost.
    """
    marked, lost = set[int](), list[str]()

    def mark(connection: Connection, _: Any, executed: str, parameters: Any, *others: Any) -> None:
        if executed.startswith(statement) and value in str(parameters):
            marked.add(id(connection.connection.driver_connection))

    def commit_and_close(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        if id(driver) in marked and not lost and driver is not None:
            lost.append(statement)
            driver.commit()
            driver.close()

    event.listen(Engine, "before_cursor_execute", mark)
    event.listen(Engine, "commit", commit_and_close)
    try:
        yield lost
    finally:
        event.remove(Engine, "before_cursor_execute", mark)
        event.remove(Engine, "commit", commit_and_close)
