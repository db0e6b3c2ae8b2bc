"""List the files of an archive as the items of an import.

The whole archive is read through before the first item is kept, so that nothing is imported from a hostile one.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete, insert, update

from app.db.field_types import ArchivedSubjectId
from app.db.session import reading, writing
from app.db.tables import Job, JobItem
from app.enrolment.archives.entries import Entry, make_refusal
from app.enrolment.archives.manifest import MANIFEST_NAMES, ArchiveManifest
from app.enrolment.archives.parser_client import ParserCrashed
from app.enrolment.archives.photo_files import PhotoFiles, open_photo_files
from workers.context import JobContext
from workers.importing.row_batches import take_rows

log = logging.getLogger("likeness.worker")

MAX_REMEMBERED_ENTRIES = 20_000
"""Entries of an archive that are remembered from the first pass; a longer archive is read a second time."""
ENTRIES_PER_CHECK = 1_000
ROWS_PER_INSERT = 2_000
MAX_NAME_LENGTH = 1024
SUBJECT: TypeAdapter[str] = TypeAdapter(ArchivedSubjectId)
ItemFields = dict[str, Any]


def has_listing(context: JobContext) -> bool:
    """Whether an earlier run of this import has listed the archive to its end."""
    with reading(context.resources.database) as session:
        return session.get_one(Job, context.job_id).total is not None


def list_archive(path: Path, context: JobContext) -> None:
    """Store one item for each file. The total, stored last, marks the listing as complete.

    If the parser of the archive crashes, which a signal from outside may have caused, it gets a second chance.
    Raises Invalid, TooLarge, NotFound, Busy (the disk is full), Interrupted.
    """
    try:
        _store_items(path, context)
    except ParserCrashed as error:
        log.warning("import.listed_again job_id=%s error=%s", context.job_id, error)
        _store_items(path, context)


def _store_items(path: Path, context: JobContext) -> None:
    database, job = context.resources.database, context.job_id
    with writing(database) as session:
        session.execute(delete(JobItem).where(JobItem.job_id == job))
    fields, count = iterate_items(path, context), 0
    while batch := take_rows(fields, ROWS_PER_INSERT, _count_characters):
        context.check()
        rows = [{"job_id": job, "number": n, "state": "queued", **item} for n, item in enumerate(batch, count)]
        with writing(database) as session:
            session.execute(insert(JobItem), rows)
        count += len(rows)
    if not count:
        raise make_refusal("it holds no file")
    with writing(database) as session:
        session.execute(update(Job).where(Job.id == job).values(total=count, tries=1))


def iterate_items(path: Path, context: JobContext) -> Iterator[ItemFields]:
    """Yield {"name", "detail"} of each file, in a fixed order. Raises Invalid, TooLarge before the first."""
    files = open_photo_files(path, context.resources.settings, context.check)
    manifest, first_entries, count = None, [], 0
    for count, entry in enumerate(files.list_files(), 1):
        if count % ENTRIES_PER_CHECK == 1:
            context.check()
        if entry.name in MANIFEST_NAMES:
            manifest = entry
        if count <= MAX_REMEMBERED_ENTRIES:
            first_entries.append(entry)
    is_remembered = count <= MAX_REMEMBERED_ENTRIES
    entries = iter(first_entries) if is_remembered else files.list_files()
    return map(_read_folder, entries) if manifest is None else _read_manifest(files, manifest, entries)


def _read_folder(entry: Entry) -> ItemFields:
    """The first folder of a file's path is its subject; a file at the top has none."""
    if entry.folder is None:
        return _make_item(entry)
    try:
        return _make_item(entry, subject=SUBJECT.validate_python(entry.folder))
    except ValidationError:
        return _make_item(entry, refused="INVALID_SUBJECT")


def _read_manifest(files: PhotoFiles, manifest_entry: Entry, entries: Iterator[Entry]) -> Iterator[ItemFields]:
    """Yield what the manifest says of each file. Files that only one of the two has are refused."""
    rows = files.iterate_manifest_rows(manifest_entry)
    with closing(ArchiveManifest.load(rows, manifest_entry.name)) as manifest:
        for entry in entries:
            if entry.name == manifest_entry.name:
                continue
            row = manifest.take(entry.name)
            fields = {"refused": "NOT_IN_MANIFEST"} if row is None else row.model_dump(exclude={"file"})
            yield _make_item(entry, **fields)
        for name in manifest.iterate_unused():
            yield _make_item(Entry(name[:MAX_NAME_LENGTH], 0, 0), refused="FILE_MISSING")


def _count_characters(item: ItemFields) -> int:
    return len(item["name"]) + len(json.dumps(item["detail"]))


def _make_item(entry: Entry, **fields: Any) -> ItemFields:
    detail = {key: value for key, value in fields.items() if value not in (None, {})}
    return {"name": entry.name, "detail": {"place": list(entry.location), "size": entry.size, **detail}}
