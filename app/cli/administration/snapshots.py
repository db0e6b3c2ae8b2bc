"""`likeness snapshot` and `likeness restore`: copy a service or a collection, and bring it back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from sqlalchemy import Engine

from app.cli.client import console
from app.cli.home import read_settings, require_database
from app.config import Settings
from app.db.field_types import NewCollectionName
from app.db.migrate import upgrade_database
from app.db.session import close_database, open_database, writing
from app.errors import AppError
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.manifest import SnapshotManifest
from app.snapshots.reader import check_snapshot
from app.snapshots.reservations import keep_others_out
from app.snapshots.restore import restore_service
from app.snapshots.rows import Report
from app.snapshots.writer import write_snapshot
from app.startup import exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.home_check import check_home_of_database
from app.storage.private_files import create_home
from app.storage.snapshot_folders import is_kept_folder

MAX_SHOWN_FILES = 10
NEW_COLLECTION_ID: TypeAdapter[str] = TypeAdapter(NewCollectionName)
Folder = Annotated[Path, typer.Argument(help="folder of the snapshot")]


def snapshot(
    folder: Folder,
    collection: Annotated[str | None, typer.Option(help="copy only this collection; default: everything")] = None,
) -> None:
    """Copy the running service, or one collection, into a new folder: rows, photos, crops and models."""
    settings = read_settings()
    require_database(settings)
    if is_kept_folder(settings.home, folder):
        raise typer.BadParameter(
            "the service keeps its own snapshots there: use POST /v1/snapshots", param_hint="FOLDER"
        )
    with _open(settings) as database, _show_progress() as report:
        manifest = write_snapshot(database, settings.home, folder, collection, report)
        _record(database, settings, "snapshot.create", collection)
    console.print(f"{folder}: {manifest.describe()}", soft_wrap=True)
    _warn_of_missing(manifest)


def restore(
    folder: Folder,
    collection: Annotated[
        str | None, typer.Option(help="restore only this collection, into a service that may be running")
    ] = None,
    name: Annotated[str | None, typer.Option("--as", help="the id that the collection gets; default: its own")] = None,
    new_face_ids: Annotated[
        bool,
        typer.Option("--new-face-ids", help="give the faces other ids, so that they can be restored beside theirs"),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="only compare the snapshot with its hashes")] = False,
) -> None:
    """Restore a snapshot of everything into an empty service, or one collection into any service."""
    if name is not None and collection is None:
        raise typer.BadParameter("name the collection with --collection", param_hint="--as")
    try:
        NEW_COLLECTION_ID.validate_python(name or "default")
    except ValidationError as error:
        raise typer.BadParameter(
            "an id has 1 to 200 letters, digits and . _ -, and is not . or ..", param_hint="--as"
        ) from error
    if check:
        with _end_on_refusal(), _show_progress() as report:
            manifest = check_snapshot(folder, report)
        console.print(f"{folder} is whole: {manifest.describe()}", soft_wrap=True)
        _warn_of_missing(manifest)
        return
    settings = read_settings()
    with exit_with_reason(settings):
        create_home(settings.home)
    with _open(settings) as database, _show_progress() as report:
        if collection is None:
            restored = restore_service(database, settings.home, folder, report)
        else:
            with keep_others_out(database, settings.home, name or collection):
                restored = restore_collection(
                    database,
                    settings.home,
                    folder,
                    collection,
                    name or collection,
                    report,
                    RestoreOptions(new_face_ids),
                )
        _record(database, settings, "snapshot.restore", name or collection)
    console.print(
        f"restored {restored.faces:,} faces and {restored.files:,} files into {settings.home}", soft_wrap=True
    )
    if restored.cancelled_jobs:
        console.print(f"{restored.cancelled_jobs} jobs had not ended when the snapshot was taken; start them again")
    if restored.working_keys:
        console.print(
            f"{restored.working_keys} keys are accepted as when the snapshot was taken: revoke again those that were "
            "revoked or rotated since (likeness keys list, likeness keys revoke)",
            soft_wrap=True,
        )


def _record(database: Engine, settings: Settings, action: str, collection: str | None) -> None:
    """Record in the audit log what a command has done."""
    with writing(database) as session:
        AuditChain(settings.home).append(session, [EntryDraft.make(action, collection=collection)])


@contextmanager
def _open(settings: Settings) -> Iterator[Engine]:
    """Open the service's database with the schema of this version."""
    with _end_on_refusal():
        with exit_with_reason(settings):
            upgrade_database(settings.database, settings.home)
        database = open_database(settings.database, settings.home)
        try:
            with exit_with_reason(settings):
                check_home_of_database(database, AuditChain(settings.home))
            yield database
        finally:
            close_database(database)


@contextmanager
def _end_on_refusal() -> Iterator[None]:
    """End the command with a sentence in place of an error that says what to do."""
    try:
        yield
    except AppError as error:
        console.print(error.detail, style="red", soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _show_progress() -> Iterator[Report]:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = {}

        def report(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done, total=total)

        yield report


def _warn_of_missing(manifest: SnapshotManifest) -> None:
    """Name the files that could not be copied although their faces are enrolled, and exit with 1 if there are any."""
    if not manifest.missing:
        return
    console.print(f"{len(manifest.missing)} files of enrolled faces are missing in the service:", style="red")
    for path in manifest.missing[:MAX_SHOWN_FILES]:
        console.print(f"  {path}", soft_wrap=True)
    raise typer.Exit(1)
