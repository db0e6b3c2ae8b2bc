"""Who is on which photo, as a table inside the archive: `manifest.csv` or `manifest.jsonl` at its top."""

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.db.field_types import ExternalId, ExternalImageId, Metadata, Role, SubjectId
from app.enrolment.archives.entries import refused

NAMES = ("manifest.csv", "manifest.jsonl")
LONGEST = 256 * 2**20
OWN = ("file", "subject", "external_id", "external_image_id", "role", "metadata")


class ManifestLine(BaseModel):
    """One photo. Columns that are not named here become metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: Annotated[ExternalImageId, Field(min_length=1)]
    subject: SubjectId | None = None
    external_id: ExternalId | None = None
    external_image_id: ExternalImageId | None = None
    role: Role | None = None
    metadata: Metadata = {}


class ArchiveManifest:
    """Kept in a private file of SQLite, so that a million lines take no memory. Close it."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("")
        self._table.execute("create table lines (file text primary key, line text, taken int default 0)")

    @classmethod
    def read(cls, data: bytes, name: str) -> Self:
        """Raises Invalid with the number of the line that cannot be taken."""
        made = cls()
        rows = _csv(data) if name.endswith(".csv") else _jsonl(data)
        number = 0
        try:
            for row in rows:
                entry = ManifestLine.model_validate(row)
                made._table.execute("insert into lines values (?, ?, 0)", (entry.file, entry.model_dump_json()))
                number += 1
        except (ValidationError, ValueError, csv.Error) as error:
            made.close()
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise refused(f"line {number + 1} of {name}: {reason}") from error
        except sqlite3.IntegrityError as error:
            made.close()
            raise refused(f"line {number + 1} of {name} names a file for the second time") from error
        return made

    def take(self, file: str) -> ManifestLine | None:
        """What it says of a file of the archive."""
        row = self._table.execute("update lines set taken = 1 where file = ? returning line", (file,)).fetchone()
        return ManifestLine.model_validate_json(row[0]) if row else None

    def left(self) -> Iterator[str]:
        """Files that it names and the archive lacks."""
        for (file,) in self._table.execute("select file from lines where taken = 0 order by file"):
            yield file

    def close(self) -> None:
        self._table.close()


def _csv(data: bytes) -> Iterator[dict[str, Any]]:
    rows = csv.DictReader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""))
    for row in rows:
        if row.pop(None, None):
            raise ValueError("it has more columns than the first line")
        yield _folded({k: v for k, v in row.items() if v})


def _jsonl(data: bytes) -> Iterator[dict[str, Any]]:
    for entry in io.TextIOWrapper(io.BytesIO(data), "utf-8-sig"):
        if entry.strip():
            row = json.loads(entry)
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
            yield _folded(row)


def _folded(row: dict[str, Any]) -> dict[str, Any]:
    given = row.get("metadata", {})
    metadata = json.loads(given) if isinstance(given, str) else given
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a JSON object")
    strange = {k: v for k, v in row.items() if k not in OWN}
    return {k: v for k, v in row.items() if k in OWN} | {"metadata": strange | metadata}
