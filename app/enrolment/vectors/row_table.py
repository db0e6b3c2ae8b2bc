"""Read the table that comes with vectors, CSV or JSON lines: one row a vector, in their order."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from app.db.field_types import ArchivedSubjectId, ExternalId, ExternalImageId, Metadata, Role, Source
from app.enrolment.archives.manifest_rows import parse_rows
from app.errors import Invalid

TABLE_NAMES = {".csv": "table.csv", ".jsonl": "table.jsonl"}
"""Suffix of a stored table -> what errors call it."""


class VectorRow(BaseModel):
    """What a table says of one vector. Columns other than these become metadata."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    subject: ArchivedSubjectId | None = None
    external_id: ExternalId | None = None
    external_image_id: ExternalImageId | None = None
    role: Role = "gallery"
    source: Source | None = None
    metadata: Metadata = {}


NO_FIELDS = VectorRow()


@dataclass(frozen=True)
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
        with closing(self._parse()) as rows:
            for row in islice(rows, start, None):
                yield _validate(row)

    def _parse(self) -> Generator[dict[str, Any]]:
        with self.path.open("rb") as file:
            yield from parse_rows(file, TABLE_NAMES[self.path.suffix])


def _validate(row: dict[str, Any]) -> VectorRow | str:
    if "file" in row:  # a column of the manifests of archives
        row = {k: v for k, v in row.items() if k != "file"} | {"metadata": {"file": row["file"]} | row["metadata"]}
    if not row["metadata"]:
        del row["metadata"]  # its check takes as long as that of all other fields
    try:
        return VectorRow.model_validate(row)
    except ValidationError as error:
        return f"INVALID_{str(error.errors()[0]['loc'][0]).upper()}"
