"""Read the manifest of an archive, which says who is on which photo: `manifest.csv` or `manifest.jsonl` at its top."""

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.db.field_types import ExternalId, ExternalImageId, Metadata, Role, Source, SubjectId
from app.enrolment.archives.entries import make_refusal

MANIFEST_NAMES = ("manifest.csv", "manifest.jsonl")
MAX_MANIFEST_BYTES = 256 * 2**20
KNOWN_COLUMNS = ("file", "subject", "external_id", "external_image_id", "role", "source", "metadata")


class ManifestLine(BaseModel):
    """The line of one photo. Columns other than these become metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: Annotated[ExternalImageId, Field(min_length=1)]
    subject: SubjectId | None = None
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
    def read(cls, data: bytes, name: str) -> Self:
        """Parse a manifest, which is CSV or JSON lines by its name. Raises Invalid with the number of a bad line."""
        manifest = cls()
        rows = _iterate_csv(data) if name.endswith(".csv") else _iterate_json_lines(data)
        number = 0
        try:
            for row in rows:
                entry = ManifestLine.model_validate(row)
                manifest._table.execute("insert into lines values (?, ?, 0)", (entry.file, entry.model_dump_json()))
                number += 1
        except (ValidationError, ValueError, csv.Error) as error:
            manifest.close()
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise make_refusal(f"line {number + 1} of {name}: {reason}") from error
        except sqlite3.IntegrityError as error:
            manifest.close()
            raise make_refusal(f"line {number + 1} of {name} names a file for the second time") from error
        return manifest

    def take(self, file: str) -> ManifestLine | None:
        """Return the line of a file and mark it as used; None if the manifest does not name the file."""
        row = self._table.execute("update lines set used = 1 where file = ? returning line", (file,)).fetchone()
        return ManifestLine.model_validate_json(row[0]) if row else None

    def iterate_unused(self) -> Iterator[str]:
        """Yield the files that the manifest names and the archive does not have."""
        for (file,) in self._table.execute("select file from lines where used = 0 order by file"):
            yield file

    def close(self) -> None:
        self._table.close()


def _iterate_csv(data: bytes) -> Iterator[dict[str, Any]]:
    rows = csv.DictReader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""))
    for row in rows:
        if row.pop(None, None):
            raise ValueError("it has more columns than the first line")
        yield _fold_metadata({k: v for k, v in row.items() if v})


def _iterate_json_lines(data: bytes) -> Iterator[dict[str, Any]]:
    for entry in io.TextIOWrapper(io.BytesIO(data), "utf-8-sig"):
        if entry.strip():
            row = json.loads(entry)
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
            yield _fold_metadata(row)


def _fold_metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Move columns other than the known ones into the metadata."""
    stated = row.get("metadata", {})
    metadata = json.loads(stated) if isinstance(stated, str) else stated
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a JSON object")
    others = {k: v for k, v in row.items() if k not in KNOWN_COLUMNS}
    return {k: v for k, v in row.items() if k in KNOWN_COLUMNS} | {"metadata": others | metadata}
