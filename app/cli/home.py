"""Check that the folder that a command works on has the database of a service."""

import os
from pathlib import Path

import typer
from sqlalchemy import make_url

from app.config import Settings
from app.db.database_file import find_database_path
from app.db.schema import read_schema_revision
from app.db.session import close_database, open_database
from app.startup import CannotStart, exit_with_reason
from app.storage.blob_store import PREFIX


def read_settings() -> Settings:
    """Read the settings of the service that a command works on. Raises SystemExit, with a sentence, if one is wrong."""
    with exit_with_reason():
        return Settings.from_env(os.environ)


def find_missing_database(settings: Settings) -> Path | None:
    """Return the path of the SQLite file if it does not exist; None if it does, or the settings name a server."""
    path = find_database_path(settings.database)
    return None if path is None or path.exists() else path


def check_photos_have_rows(settings: Settings) -> None:
    """Check that a home with photos has a database with tables: with an empty one, the photos would be swept away.

    Raises CannotStart, OperationalError, DatabaseError.
    """
    if not any((settings.home / "blobs").glob(f"{PREFIX}*")):
        return
    if _has_content(settings):
        database = open_database(settings.database, settings.home)
        try:
            if read_schema_revision(database) is not None:
                return
        finally:
            close_database(database)
    address = make_url(settings.database).render_as_string(hide_password=True).removeprefix("sqlite:///")
    raise CannotStart(
        f"{settings.home.resolve()} holds photos, but the database {address} is missing or empty. Restore the database "
        "from a backup, or check LIKENESS_DATABASE_URL; to start anew, move the folder blobs/ away"
    )


def _has_content(settings: Settings) -> bool:
    """Whether the settings name a server, or a SQLite file that exists and is not empty."""
    path = find_database_path(settings.database)
    return path is None or (path.is_file() and path.stat().st_size > 0)


def require_database(settings: Settings, new: bool | None = None) -> None:
    """Keep a command from creating an empty database in the wrong folder.

    new: whether --new was given; None if the command has no such option
    Raises typer.BadParameter if there is no database; it names the folder, and how to choose another.
    """
    path = find_missing_database(settings)
    if path is None or new:
        return
    alternative = "" if new is None else "; or add --new to make a new, empty database there"
    raise typer.BadParameter(
        f"there is no database at {path.resolve()}. A command works on the folder that LIKENESS_HOME names "
        f"(now {settings.home.resolve()}). Run it in the folder in which the service was started, or set LIKENESS_HOME "
        f"to the service's home{alternative}.",
        param_hint="LIKENESS_HOME",
    )
