"""Migrate the schema of the database with Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def make_config(url: str) -> Config:
    """Return Alembic's configuration for the database at this address."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def upgrade_database(url: str) -> None:
    """Migrate the database to the newest schema; nothing happens if it has it already."""
    command.upgrade(make_config(url), "head")
