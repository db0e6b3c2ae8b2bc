"""What an archive holds, as the items of an import: looked through to its end first, so that a hostile one leaves
nothing."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.db.field_types import SubjectId
from app.enrolment.archives import Archive, ArchiveLimits, Entry, checked, is_gzip, open_archive, unpack_gzip
from app.enrolment.archives.entries import refused
from app.enrolment.archives.manifest import LONGEST, NAMES, ArchiveManifest
from ml.errors import Unreadable
from workers.context import JobContext

FEW = 20_000  # so many entries are kept from the first look for the second
SUBJECT: TypeAdapter[str] = TypeAdapter(SubjectId)
Row = dict[str, Any]


def items(path: Path, context: JobContext) -> Iterator[Row]:
    """{"name", "detail"} of each file, in a fixed order. Raises Invalid, TooLarge before the first."""
    limits = ArchiveLimits.of(context.resources.settings)
    if is_gzip(path):
        unpack_gzip(path, limits)
    archive = open_archive(path)
    table, first_entries, count = None, [], 0
    for count, entry in enumerate(checked(archive.entries(), limits), 1):
        if count % 1_000 == 1:
            context.check()
        if entry.name in NAMES:
            table = entry
        if count <= FEW:
            first_entries.append(entry)
    entries = iter(first_entries) if count <= FEW else checked(archive.entries(), limits)
    return map(_by_folder, entries) if table is None else _by_manifest(archive, table, entries)


def _by_folder(entry: Entry) -> Row:
    """The first folder is the subject; a file at the top is nobody's."""
    if entry.folder is None:
        return _row(entry)
    try:
        return _row(entry, subject=SUBJECT.validate_python(entry.folder))
    except ValidationError:
        return _row(entry, refused="INVALID_SUBJECT")


def _by_manifest(archive: Archive, table: Entry, entries: Iterator[Entry]) -> Iterator[Row]:
    """What the table says of each file. A file that it does not name, or that it names in vain, is refused."""
    try:
        data = archive.read(table, LONGEST)
    except Unreadable as error:
        raise refused(f"{table.name}: {error}") from error
    with closing(ArchiveManifest.read(data, table.name)) as manifest:
        for entry in entries:
            if entry.name == table.name:
                continue
            row = manifest.take(entry.name)
            fields = {"refused": "NOT_IN_MANIFEST"} if row is None else row.model_dump(exclude={"file"})
            yield _row(entry, **fields)
        for name in manifest.left():
            yield _row(Entry(name[:1024], 0, 0), refused="FILE_MISSING")


def _row(entry: Entry, **fields: Any) -> Row:
    kept = {k: v for k, v in fields.items() if v not in (None, {})}
    return {"name": entry.name, "detail": {"place": list(entry.place), "size": entry.size, **kept}}
