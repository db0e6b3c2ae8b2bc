"""Migrate the schema of the database with Alembic, which is imported only where it is used."""

from pathlib import Path
from typing import TYPE_CHECKING

from app.db.schema import MIGRATIONS, make_newer_schema_error

if TYPE_CHECKING:
    from alembic.config import Config


def make_config(url: str, home: Path | None = None) -> "Config":
    """Return Alembic's configuration for the database at this address."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    config.attributes["home"] = home
    return config


def upgrade_database(url: str, home: Path | None) -> None:
    """Migrate the database to the newest schema; nothing happens if it has it already.

    home: as for `open_database`
    Raises CannotStart if a newer version of Likeness made the schema.
    """
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(make_config(url, home), "head")
    except CommandError as error:
        if "Can't locate revision" not in str(error):
            raise
        raise make_newer_schema_error(url, home) from error
