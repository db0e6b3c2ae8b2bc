"""Keys, made by whoever may read the service's home."""

import os
from typing import Annotated

import typer

from app.access import keys
from app.cli.home import require_database
from app.config import Settings
from app.db.migrate import upgrade
from app.db.session import open_database, writing
from app.deps.caller import RANK

app = typer.Typer(help="Keys to the service.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keys to the service."""


@app.command()
def create(
    role: Annotated[str, typer.Option(help="reader, operator or admin")] = "reader",
    name: Annotated[str, typer.Option(help="whose it is")] = "",
    collection: Annotated[list[str] | None, typer.Option(help="only for this collection; may be repeated")] = None,
    new: Annotated[bool, typer.Option("--new", help="make the database where there is none yet")] = False,
) -> None:
    """Print a new key, and nothing else. It is shown once. Refuses where the service's home holds no database."""
    if role not in RANK:
        raise typer.BadParameter(f"a role is one of {', '.join(RANK)}", param_hint="--role")
    settings = Settings.from_env(os.environ)
    require_database(settings, new)
    settings.home.mkdir(parents=True, exist_ok=True)
    upgrade(settings.database)
    with writing(open_database(settings.database)) as session:
        _, secret = keys.create(session, role, name, tuple(collection or ()))  # type: ignore[arg-type]
    print(secret)
