"""Migrate the schema of the database with Alembic."""

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from app.db.schema import MIGRATIONS, make_newer_schema_error


def make_config(url: str) -> Config:
    """Return Alembic's configuration for the database at this address."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def upgrade_database(url: str) -> None:
    """Migrate the database to the newest schema; nothing happens if it has it already.

    Raises CannotStart if a newer version of Likeness made the schema.
    """
    try:
        command.upgrade(make_config(url), "head")
    except CommandError as error:
        if "Can't locate revision" not in str(error):
            raise
        raise make_newer_schema_error(url) from error
