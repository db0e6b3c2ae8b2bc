"""Check that the folder that a command works on has the database of a service."""

from pathlib import Path

import typer
from sqlalchemy import make_url

from app.config import Settings


def find_missing_database(settings: Settings) -> Path | None:
    """Return the path of the SQLite file if it does not exist; None if it does, or the settings name a server."""
    url = make_url(settings.database)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    path = Path(url.database)
    return None if path.exists() else path


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
