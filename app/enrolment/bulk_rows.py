"""Insert the rows of faces and embeddings in bulk, without an object for each in the session."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.tables import Base

FACE_COLUMNS = (
    "face_id", "collection_id", "subject_pk", "role", "image_id", "number", "external_image_id", "source",
    "bounding_box", "landmarks", "quality", "metadata", "change", "created_at",
)  # fmt: skip
EMBEDDING_COLUMNS = ("model_id", "task", "face_pk", "vector")
INSERTS: dict[str, Callable[[Any], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_rows(session: Session, table: type[Base], columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows that do not exist yet. JSON values are texts.

    The rows go to the driver as they are: SQLAlchemy would take longer over their parameters than SQLite inserts them.
    """
    connection = session.connection()
    statement = INSERTS[connection.dialect.name](table.__table__).on_conflict_do_nothing()
    compiled = statement.compile(dialect=connection.dialect, column_keys=columns)
    if not rows:
        return
    if compiled.positiontup is None:
        connection.exec_driver_sql(str(compiled), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    take = itemgetter(*(columns.index(name) for name in compiled.positiontup))
    connection.exec_driver_sql(str(compiled), [take(row) for row in rows])


def iterate_face_ids(count: int) -> Iterator[str]:
    """Yield new ids in the order of time, as UUIDs of version 7 (RFC 9562): an index of them grows at its end."""
    milliseconds, tail = f"{time.time_ns() // 1_000_000:012x}", secrets.token_hex(8 * count)
    for i in range(count):
        digits = tail[16 * i : 16 * i + 16]
        version, variant = f"7{i % 4096:03x}", f"{8 + int(digits[0], 16) % 4:x}"
        yield f"{milliseconds[:8]}-{milliseconds[8:]}-{version}-{variant}{digits[1:4]}-{digits[4:]}"
