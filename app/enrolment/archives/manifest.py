"""Read the manifest of an archive, which says who is on which photo: `manifest.csv` or `manifest.jsonl` at its top."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.db.field_types import ArchivedSubjectId, ExternalId, ExternalImageId, Metadata, Role, Source
from app.db.subject_ids import list_spellings
from app.enrolment.archives.entries import make_refusal

MANIFEST_NAMES = ("manifest.csv", "manifest.jsonl")
MAX_MANIFEST_BYTES = 256 * 2**20


class ManifestLine(BaseModel):
    """The line of one photo. Columns other than these become metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: Annotated[ExternalImageId, Field(min_length=1)]
    subject: ArchivedSubjectId | None = None
    external_id: ExternalId | None = None
    external_image_id: ExternalImageId | None = None
    role: Role | None = None
    source: Source | None = None
    metadata: Metadata = {}


class ArchiveManifest:
    """The lines of a manifest, in a temporary SQLite file, so that a million lines take no memory. Must be closed."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("")
        self._table.execute("create table lines (file text primary key, line text, used int default 0)")

    @classmethod
    def load(cls, rows: Iterable[dict[str, Any]], name: str) -> Self:
        """Check the parsed rows of a manifest. Raises Invalid with the number of a bad row."""
        number = 0
        with ExitStack() as on_error:
            manifest = on_error.enter_context(closing(cls()))
            try:
                for row in rows:
                    entry = ManifestLine.model_validate(row)
                    manifest._table.execute("insert into lines values (?, ?, 0)", (entry.file, entry.model_dump_json()))
                    number += 1
            except ValueError as error:
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                raise make_refusal(f"line {number + 1} of {name}: {reason}") from error
            except sqlite3.IntegrityError as error:
                raise make_refusal(f"line {number + 1} of {name} names a file for the second time") from error
            on_error.pop_all()
        return manifest

    def take(self, file: str) -> ManifestLine | None:
        """Return the line of a file and mark it as used; None if the manifest does not name the file.

        The name may be spelt otherwise there: macOS decomposes the names of files, and spreadsheets do not.
        """
        for spelling in [file] if file.isascii() else list_spellings(file):
            use = "update lines set used = 1 where file = ? returning line"
            if row := self._table.execute(use, (spelling,)).fetchone():
                return ManifestLine.model_validate_json(row[0])
        return None

    def iterate_unused(self) -> Iterator[str]:
        """Yield the files that the manifest names and the archive does not have."""
        for (file,) in self._table.execute("select file from lines where used = 0 order by file"):
            yield file

    def close(self) -> None:
        self._table.close()
