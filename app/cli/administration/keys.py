"""`likeness keys`: create, list, rotate and revoke keys in the service's database."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.access import keys
from app.cli.home import read_settings, require_database
from app.db.migrate import upgrade_database
from app.db.session import close_database, open_database, reading, writing
from app.db.tables import Key, now
from app.deps.caller import RANK
from app.errors import AppError
from app.startup import exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.home_check import check_home_of_database
from app.storage.private_files import create_home

DAY_SECONDS = 86_400.0
KeyId = Annotated[str, typer.Argument(help="the key's id, as `likeness keys list` shows it")]

app = typer.Typer(help="Keys to the service.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Keys to the service."""


@app.command()
def create(
    role: Annotated[str, typer.Option(help="reader, operator or admin")] = "reader",
    name: Annotated[str, typer.Option(help="a name for the key, such as its owner's")] = "",
    collection: Annotated[list[str] | None, typer.Option(help="only for this collection; may be repeated")] = None,
    days: Annotated[float | None, typer.Option(min=0.0, help="refuse the key after so many days")] = None,
    new: Annotated[bool, typer.Option("--new", help="create the database if there is none yet")] = False,
) -> None:
    """Print a new key, which cannot be shown again. Refuses if the service's home has no database."""
    if role not in RANK:
        raise typer.BadParameter(f"the role must be one of {', '.join(RANK)}", param_hint="--role")
    expires_at = None if days is None else now() + days * DAY_SECONDS
    with _change_keys("key.create", new) as (session, entries):
        key, secret = keys.create_key(session, role, name, tuple(collection or ()), expires_at)  # type: ignore[arg-type]
        entries.append(key)
    print(secret)


@app.command("list")
def list_keys() -> None:
    """List the keys with their ids, the oldest first."""
    settings = read_settings()
    require_database(settings)
    with exit_with_reason(settings):
        upgrade_database(settings.database, settings.home)
    database = open_database(settings.database, settings.home)
    with reading(database) as session:
        for key in session.scalars(select(Key).order_by(Key.id)):
            print(key.id, key.role.ljust(8), ",".join(key.collections) or "all", _describe_state(key), key.name)
    close_database(database)


@app.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[float, typer.Option(min=0.0, help="seconds for which the secret it has now is accepted")] = 3600,
) -> None:
    """Give a key another secret, and print it. It cannot be shown again."""
    with _change_keys("key.rotate") as (session, entries):
        key, secret = keys.rotate_key(session, key_id, overlap)
        entries.append(key)
    print(secret)


@app.command()
def revoke(key_id: KeyId) -> None:
    """Revoke a key with all its secrets. Running services refuse it within a second."""
    with _change_keys("key.revoke") as (session, entries):
        keys.revoke_key(session, key_id)
        entries.append(session.get_one(Key, key_id))
    print(f"{key_id} is revoked")


def _describe_state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {_format_time(key.revoked_at)}"
    if key.expires_at is None:
        return "never expires"
    return f"{'expired' if key.expires_at <= now() else 'expires'} {_format_time(key.expires_at)}"


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@contextmanager
def _change_keys(action: str, new: bool | None = None) -> Iterator[tuple[Session, list[Key]]]:
    """Open a session, and a list of keys that the audit log records under the action in the same transaction.

    new: as for `require_database`
    Raises typer.BadParameter in place of an error that the caller can do something about.
    """
    settings = read_settings()
    require_database(settings, new)
    with exit_with_reason(settings):
        create_home(settings.home)
        upgrade_database(settings.database, settings.home)
    database, changed, chain = open_database(settings.database, settings.home), list[Key](), AuditChain(settings.home)
    try:
        with exit_with_reason(settings):
            check_home_of_database(database, chain)
        with writing(database) as session:
            yield session, changed
            drafts = [draft for key in changed for draft in _make_drafts(action, key)]
            chain.append(session, drafts)
    except AppError as error:
        raise typer.BadParameter(error.detail) from error
    finally:
        close_database(database)


def _make_drafts(action: str, key: Key) -> Iterator[EntryDraft]:
    collections: list[str | None] = [*key.collections] or [None]
    for collection in collections:
        yield EntryDraft.make(action, collection=collection, resource=f"key:{key.id}")
