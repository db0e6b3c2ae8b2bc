"""Say what an error of the database means for a request, and treat a damaged database as one that is not available."""

import logging
import sqlite3
from typing import Any

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from app.errors import Busy
from ml.files import parse_json

DAMAGED = "is damaged: an operator can restore it from a backup"
READ_ONLY = "cannot be written: its disk or its file is read-only"
SQLITE_FAILURES = {
    "malformed": DAMAGED,
    "not a database": DAMAGED,
    "could not decode": DAMAGED,
    "no such table": DAMAGED,
    "no such column": DAMAGED,
    "readonly": READ_ONLY,
    "disk is full": "cannot be written: its disk is full",
}
"""What SQLite says -> what is wrong."""

log = logging.getLogger("likeness.database")


def describe_failure(error: Exception) -> Busy:
    """Return the error to answer a request with that the database has failed."""
    original = error.orig if isinstance(error, DBAPIError) else error
    message = str(original).lower()
    reason = "is busy or cannot be reached"
    if isinstance(original, sqlite3.Error):
        reason = next((what for words, what in SQLITE_FAILURES.items() if words in message), reason)
    return Busy(f"the database {reason}; nothing of this request was stored")


def report_damage(context: ExceptionContext) -> None:
    """Raises Busy in place of what SQLite raises for damaged pages. SQLAlchemy calls this with every error."""
    error = context.original_exception
    if type(error) is sqlite3.DatabaseError or isinstance(error, UnicodeDecodeError):
        raise make_damage_error(error) from error


def make_damage_error(error: Exception) -> Busy:
    """Return the error for a database whose content cannot be read. It is logged, without values of rows."""
    log.error("database.damaged error=%s", type(error).__name__)
    return Busy(f"the database {DAMAGED}")


def parse_stored_json(value: str | bytes) -> Any:
    """Return the value of a column of JSON. Raises Busy if it is damaged."""
    try:
        return parse_json(value)
    except ValueError as error:
        raise make_damage_error(error) from error
