"""Say what an error of the database means for a request, and treat a damaged database as one that is not available."""

import logging
import sqlite3
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from app.errors import Busy, OutcomeUnknown
from app.startup import REFUSED_SERVERS
from ml.files import parse_json

DAMAGED = "is damaged: an operator can restore it from a backup"
READ_ONLY = "cannot be written: its disk or its file is read-only"
DISK_FULL = "cannot be written: its disk is full"
SQLITE_FAILURES = {
    "malformed": DAMAGED,
    "not a database": DAMAGED,
    "could not decode": DAMAGED,
    "no such table": DAMAGED,
    "no such column": DAMAGED,
    "readonly": READ_ONLY,
    "disk is full": DISK_FULL,
}
"""What SQLite says -> what is wrong."""
READ_ONLY_STATE = "25006"
LOST_STATES = (READ_ONLY_STATE, "25P03", "25P04")
"""PostgreSQL's errors of a server that is read-only, and of a transaction that it ended since it waited or took too
long. For the driver, they are internal errors; to repeat the transaction on another connection helps."""
SERVER_READ_ONLY = "cannot be written: its server is read-only"
DAMAGED_STATES = ("XX001", "XX002")
"""PostgreSQL's errors of a page of a table or of an index that it cannot read."""
POSTGRESQL_FAILURES = {
    READ_ONLY_STATE: SERVER_READ_ONLY,
    "53100": DISK_FULL,
    "58030": "cannot be read or written: its disk reports errors",
}
"""The state of PostgreSQL's error -> what is wrong."""
OUTCOME_UNKNOWN = (
    "whether this request was stored is not known. Repeat a POST with the same Idempotency-Key, or look whether it was"
)

log = logging.getLogger("likeness.database")


def describe_failure(error: Exception, *, is_committing: bool = False) -> Busy:
    """Return the error to answer a request with that the database has failed.

    is_committing: whether it failed at the commit; it is not known then whether PostgreSQL has carried it out
    """
    original = error.orig if isinstance(error, DBAPIError) else error
    message = str(original).lower()
    reason = "is busy or cannot be reached"
    if isinstance(original, sqlite3.Error):
        reason = next((what for words, what in SQLITE_FAILURES.items() if words in message), reason)
    elif message.startswith(REFUSED_SERVERS):
        reason = str(original).removeprefix("the database ")
    else:
        reason = POSTGRESQL_FAILURES.get(getattr(original, "sqlstate", None) or "", reason)
    if is_committing and not isinstance(original, sqlite3.Error):
        return OutcomeUnknown(f"the database {reason}; {OUTCOME_UNKNOWN}")
    return Busy(f"the database {reason}; nothing of this request was stored")


def report_damage(context: ExceptionContext) -> None:
    """Raises Busy in place of what SQLite raises for damaged pages. SQLAlchemy calls this with every error."""
    error = context.original_exception
    if type(error) is sqlite3.DatabaseError or isinstance(error, UnicodeDecodeError):
        raise make_damage_error(error) from error


def report_internal_error(context: ExceptionContext) -> None:
    """Raises OperationalError in place of the internal errors of PostgreSQL that pass, and drops their connection.

    Raises Busy for pages that are damaged.

    SQLAlchemy calls this with every error. It closes the cursor of a statement that fails, but not of one that loses
    its connection.
    """
    error = context.original_exception
    state = getattr(error, "sqlstate", None)
    if state in DAMAGED_STATES:
        raise make_damage_error(error) from error
    is_lost = state in LOST_STATES
    if is_lost:
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
    if context.is_disconnect and context.execution_context is not None:
        context.execution_context.cursor.close()
    if is_lost:
        raise OperationalError(context.statement, None, error, hide_parameters=True, connection_invalidated=True)


def find_write_fault(session: Session) -> str | None:
    """Return why PostgreSQL refuses to write; None if it does not. The session then has to end.

    Its connection is dropped: the next one may reach the server that has taken over.
    """
    if session.get_bind().dialect.name == "sqlite" or session.scalar(text("SHOW transaction_read_only")) == "off":
        return None
    session.invalidate()
    return f"the database {SERVER_READ_ONLY}"


def make_damage_error(error: BaseException) -> Busy:
    """Return the error for a database whose content cannot be read. It is logged, without values of rows."""
    log.error("database.damaged error=%s", type(error).__name__)
    return Busy(f"the database {DAMAGED}")


def parse_stored_json(value: str | bytes) -> Any:
    """Return the value of a column of JSON. Raises Busy if it is damaged."""
    try:
        return parse_json(value)
    except ValueError as error:
        raise make_damage_error(error) from error
