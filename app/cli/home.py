"""Which folder a command works on, and whether a service keeps its database there."""

from pathlib import Path

import typer
from sqlalchemy import make_url

from app.config import Settings


def missing_database(settings: Settings) -> Path | None:
    """The SQLite file that is not there; None where it is, or where the settings name a database server."""
    url = make_url(settings.database)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    path = Path(url.database)
    return None if path.exists() else path


def require_database(settings: Settings, new: bool | None = None) -> None:
    """Keep a command from making a second, empty database in the wrong folder.

    new: whether --new was given, None where the command has no such option
    Raises typer.BadParameter that names the folder, and how to name another.
    """
    path = missing_database(settings)
    if path is None or new:
        return
    otherwise = "" if new is None else "; or add --new to make a new, empty database there"
    raise typer.BadParameter(
        f"there is no database at {path.resolve()}. A command works on the folder that LIKENESS_HOME names "
        f"(now {settings.home.resolve()}). Run it in the folder in which the service was started, or set LIKENESS_HOME "
        f"to the service's home{otherwise}.",
        param_hint="LIKENESS_HOME",
    )
