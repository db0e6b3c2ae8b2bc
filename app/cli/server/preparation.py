"""Prepare the home and the database for the processes of the service."""

import os
from typing import NamedTuple

from app.access import keys
from app.cli.home import check_photos_have_rows, find_missing_database, require_database
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.schema import check_schema, check_tables, is_newest_schema
from app.db.session import close_database, open_database, writing
from app.resources import open_resources
from app.serving.home_sharing import check_other_services
from app.startup import CannotStart, exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.home_check import check_home_of_database
from app.storage.audit_log.spool import AuditSpool
from app.storage.private_files import create_home
from app.storage.recognisers.default_recogniser import store_built_in


class Preparation(NamedTuple):
    """What was made. new_database: path of a new SQLite file; secret: of the first key; both None if there were some"""

    new_database: str | None = None
    secret: str | None = None


def prepare_home(settings: Settings) -> Preparation:
    """Make what the service needs, and open and close all that its processes open, so that errors are explained once.

    Raises CannotStart, Busy, LikenessError, SQLAlchemyError, OSError.
    """
    new_database = find_missing_database(settings)
    check_photos_have_rows(settings)
    migrate(settings)
    secret = create_first_key(settings)
    with open_resources(settings) as resources:
        store_built_in(resources.database, resources.models, resources.default_recogniser)
        AuditSpool(resources.audit).close()
    return Preparation(str(new_database.resolve()) if new_database else None, secret)


def migrate(settings: Settings) -> None:
    """Migrate the database if it has an older schema, check its tables, and that no other service shares it."""
    create_home(settings.home)
    database = open_database(settings.database, settings.home)
    try:
        if not is_newest_schema(database):
            upgrade_database(settings.database, settings.home)
        check_tables(database)
        check_other_services(database, settings.home)
    finally:
        close_database(database)


def create_first_key(settings: Settings) -> str | None:
    """Create an admin's key for all collections, and return its secret; None if there is one that never expires.

    Raises CannotStart if the database belongs to another home.
    """
    database = open_database(settings.database, settings.home)
    try:
        chain = AuditChain(settings.home)
        check_home_of_database(database, chain)
        with writing(database) as session:
            if keys.list_lasting_admins(session):
                return None
            chain.append(session, [])  # two that start at once take turns
            if keys.list_lasting_admins(session):
                return None
            key, secret = keys.create_key(session, "admin", "first start")
            chain.append(session, [EntryDraft.make("key.create", resource=f"key:{key.id}")])
            return secret
    finally:
        close_database(database)


def check_replaceable(settings: Settings) -> None:
    """Check that this version can take a running service over: its processes may not find another schema.

    Raises CannotStart, OperationalError, DatabaseError.
    """
    database = open_database(settings.database, settings.home)
    try:
        check_schema(database)
        if not is_newest_schema(database):
            raise CannotStart("the database must be migrated first. Stop the service, and start it")
        check_tables(database)
    finally:
        close_database(database)


def migrate_home(new: bool) -> None:
    """Migrate the database of the home that the settings name. new: create one if there is none"""
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    require_database(settings, new)
    with exit_with_reason(settings):
        if not new:
            check_photos_have_rows(settings)
        migrate(settings)


def require_home() -> None:
    """Refuse to go on if the home that the settings name has no database."""
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    require_database(settings)
    with exit_with_reason(settings):
        create_home(settings.home)
