"""`likeness keys`: create keys in the service's database."""

import os
from typing import Annotated

import typer

from app.access import keys
from app.cli.home import require_database
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import open_database, writing
from app.deps.caller import RANK

app = typer.Typer(help="Keys to the service.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keys to the service."""


@app.command()
def create(
    role: Annotated[str, typer.Option(help="reader, operator or admin")] = "reader",
    name: Annotated[str, typer.Option(help="a name for the key, such as its owner's")] = "",
    collection: Annotated[list[str] | None, typer.Option(help="only for this collection; may be repeated")] = None,
    new: Annotated[bool, typer.Option("--new", help="create the database if there is none yet")] = False,
) -> None:
    """Print a new key, which cannot be shown again. Refuses if the service's home has no database."""
    if role not in RANK:
        raise typer.BadParameter(f"the role must be one of {', '.join(RANK)}", param_hint="--role")
    settings = Settings.from_env(os.environ)
    require_database(settings, new)
    settings.home.mkdir(parents=True, exist_ok=True)
    upgrade_database(settings.database)
    with writing(open_database(settings.database)) as session:
        _, secret = keys.create_key(session, role, name, tuple(collection or ()))  # type: ignore[arg-type]
    print(secret)
