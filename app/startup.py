"""End a process that cannot start with one sentence and exit code 1, instead of a traceback."""

import errno
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from app.config import PREFIX, Settings
from app.errors import Busy
from ml.errors import LikenessError

EXIT_CODE = 1
SQLITE_REASONS = {
    "file is not a database": "is damaged: it is not a SQLite database. Restore it from a backup",
    "malformed": "is damaged. Restore it from a backup",
    "could not decode": "is damaged. Restore it from a backup",
    "no such table": "is damaged. Restore it from a backup",
    "no such column": "is damaged. Restore it from a backup",
    "unable to open": "cannot be opened. Check that its folder exists and that the service's user may write there",
    "readonly": "cannot be written. Give its file and folder to the service's user",
    "full": "cannot be written, because the disk is full. Free some space",
    "disk i/o": "cannot be read or written: the disk reports errors. Check it, and restore the database from a backup",
    "locked": "is locked by another process. Stop that process, or start again later",
}
"""What SQLite says -> what that means, and what to do."""
LEFT_BEHIND = "the database was left behind by a failover"
STANDBY = "the database is a standby"
REFUSED_SERVERS = (LEFT_BEHIND, STANDBY)
"""How the error begins that is raised in place of a connection to a server that must not be used. The rest says why,
and what to do."""


class CannotStart(Exception):
    """What keeps a process from starting, and what to do, in a sentence or two."""


@contextmanager
def exit_with_reason(settings: Settings | None = None) -> Iterator[None]:
    """Print what keeps the process from starting, and raise SystemExit. Errors that nothing explains pass through."""
    try:
        yield
    except Exception as error:
        reason = explain_start_error(error, settings)
        if reason is None:
            raise
        sys.stderr.write(f"likeness cannot start: {reason}\n")
        raise SystemExit(EXIT_CODE) from error


def explain_start_error(error: BaseException, settings: Settings | None = None) -> str | None:
    """Return what keeps a process from starting, and what to do; None if the error is not a known one."""
    if isinstance(error, Busy) and error.__cause__ is not None:
        return explain_start_error(error.__cause__, settings)
    if isinstance(error, CannotStart | LikenessError):
        return str(error)
    if isinstance(error, ValidationError):
        return f"the settings are not valid: {'; '.join(_describe_settings(error))}"
    if isinstance(error, ArgumentError | NoSuchModuleError):
        return f"{PREFIX}DATABASE_URL is not the address of a database: {error}"
    if isinstance(error, DBAPIError | sqlite3.Error):
        return _explain_database_error(error, settings)
    if isinstance(error, UnicodeDecodeError):  # SQLite's message about a damaged schema
        return _explain_database_error(sqlite3.DatabaseError("malformed"), settings)
    if isinstance(error, OSError):
        return _explain_system_error(error, settings)
    return None


def _describe_settings(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False):
        name = "_".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        yield f"{PREFIX}{name.upper()}: {message}" if name else message


def _explain_database_error(error: Exception, settings: Settings | None) -> str:
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    message = str(original).strip()
    address = make_url(settings.database).render_as_string(hide_password=True) if settings else ""
    if isinstance(original, sqlite3.Error):
        for words, reason in SQLITE_REASONS.items():
            if words in message.lower():
                return f"the database {address.removeprefix('sqlite:///')} {reason}"
    if message.startswith(REFUSED_SERVERS):
        return message.replace("the database", f"the database {address}", 1)
    first = message.splitlines()[0] if message else type(original).__name__
    return f"the database {address} cannot be used: {first}. Check {PREFIX}DATABASE_URL, and that the server runs"


def _explain_system_error(error: OSError, settings: Settings | None) -> str:
    path = error.filename or (settings.home if settings else "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {path} is full. Free some space"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path} cannot be written. {PREFIX}HOME must be a folder that the service's user may write to"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{path} is not a folder. {PREFIX}HOME must be a folder"
    return str(error)
