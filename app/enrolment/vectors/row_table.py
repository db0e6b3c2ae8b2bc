"""Read the table that comes with vectors, CSV or JSON lines: one row a vector, in their order."""

import dataclasses
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from app.db.field_types import ArchivedSubjectId, ExternalId, ExternalImageId, Metadata, Role, Source
from app.enrolment.archives.manifest_rows import parse_rows
from app.errors import Invalid

TABLE_NAMES = {".csv": "table.csv", ".jsonl": "table.jsonl"}
"""Suffix of a stored table -> what errors call it."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class VectorRow:
    """What a table says of one vector. Columns other than these become metadata."""

    subject: ArchivedSubjectId | None = None
    external_id: ExternalId | None = None
    external_image_id: ExternalImageId | None = None
    role: Role = "gallery"
    source: Source | None = None
    metadata: Metadata | None = None


VECTOR_ROW = TypeAdapter(VectorRow)
NO_FIELDS = VectorRow()


@dataclasses.dataclass(frozen=True)
class RowTable:
    """A table on the disk, whose suffix says its format."""

    path: Path

    def check(self, count: int) -> None:
        """Check that the table can be parsed to its end and has as many rows as there are vectors. Raises Invalid."""
        rows = sum(1 for _ in self._parse())
        if rows != count:
            raise Invalid(
                f"the table has {rows:,} rows and there are {count:,} vectors; one row a vector is needed",
                code="InvalidVectors",
            )

    def iterate_rows(self, start: int) -> Iterator[VectorRow | str]:
        """Yield the rows from `start` on; of a row that cannot be used, the reason."""
        with closing(self._parse(start)) as rows:
            for row in rows:
                yield _validate(row)

    def _parse(self, start: int = 0) -> Generator[dict[str, Any]]:
        with self.path.open("rb") as file:
            yield from parse_rows(file, TABLE_NAMES[self.path.suffix], start)


def _validate(row: dict[str, Any]) -> VectorRow | str:
    if "file" in row:  # a column of the manifests of archives
        row = {k: v for k, v in row.items() if k != "file"} | {"metadata": {"file": row["file"]} | row["metadata"]}
    if not row["metadata"]:
        del row["metadata"]  # its check takes as long as that of all other fields
    try:
        return VECTOR_ROW.validate_python(row)
    except ValidationError as error:
        return f"INVALID_{str(error.errors()[0]['loc'][0]).upper()}"
