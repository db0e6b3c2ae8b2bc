"""Insert the rows of faces and embeddings in bulk, without an object for each in the session."""

import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import orjson
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from app.db.tables import Base, Embedding
from app.storage.embedding_codec import encode_embeddings
from ml.types import Rows

UUID_BYTES, UUID_CHARACTERS = 16, 36


def insert_embeddings(session: Session, model: str, task: str, pks: Sequence[int], rows: Rows) -> None:
    """Insert (n, d) embeddings that do not exist yet. pks: of their n faces"""
    columns = {"model_id": model, "task": task, "face_pk": list(pks), "vector": encode_embeddings(rows)}
    insert_columns(session, Embedding, len(pks), columns)


def insert_columns(session: Session, table: type[Base], count: int, columns: Mapping[str, Any]) -> None:
    """Insert the rows that do not exist yet. JSON values are texts, and texts are without NUL.

    columns: name -> a list of a value for each of `count` rows, or the value of all; bytes in a list have one length
    """
    if count == 0:
        return
    connection = session.connection()
    insert = _insert_on_sqlite if connection.dialect.name == "sqlite" else _insert_on_postgres
    insert(connection, table, count, columns)


def _insert_on_postgres(connection: Connection, table: type[Base], count: int, columns: Mapping[str, Any]) -> None:
    """Insert the rows. They go to the driver as they are: SQLAlchemy would take long over their parameters."""
    statement = postgresql.insert(table).on_conflict_do_nothing()
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(columns))
    values = [value if isinstance(value, list) else repeat(value, count) for value in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
    connection.exec_driver_sql(str(compiled), rows)


def _insert_on_sqlite(connection: Connection, table: type[Base], count: int, columns: Mapping[str, Any]) -> None:
    """Insert the rows by one statement, which takes half as long as one for each row, and does not hold the GIL.

    What is the same in all rows is a parameter. Values of one length are one parameter, of which each row takes its
    part. The rest is a JSON array, with an array for each row if it is of several columns.
    """
    parameters: list[Any] = []
    expressions: dict[str, str] = {}
    varying: dict[str, list[Any]] = {}
    for name, values in columns.items():
        if not isinstance(values, list) or values.count(values[0]) == count:
            parameters.append(values[0] if isinstance(values, list) else values)
            expressions[name] = f"?{len(parameters)}"
        elif (joined := _join(values)) is not None:
            parameters.append(joined)
            size = len(joined) // count
            part = f"substr(?{len(parameters)}, key * {size} + 1, {size})"
            expressions[name] = part if isinstance(values[0], bytes) else f"CAST({part} AS TEXT)"
        else:
            varying[name] = values
            expressions[name] = f"json_extract(value, '$[{len(varying) - 1}]')"
    rows: list[Any] = list(zip(*varying.values(), strict=True)) or [None] * count
    if len(varying) == 1:
        [(name, rows)] = varying.items()
        expressions[name] = "value"
    parameters.append(orjson.dumps(rows).decode())
    quote = connection.dialect.identifier_preparer.quote
    connection.exec_driver_sql(
        f"INSERT INTO {quote(table.__tablename__)} ({', '.join(map(quote, expressions))}) "
        f"SELECT {', '.join(expressions.values())} FROM json_each(?{len(parameters)}) "
        "WHERE true ON CONFLICT DO NOTHING",
        tuple(parameters),
    )


def _join(values: Sequence[Any]) -> bytes | None:
    """Return bytes, or the characters of texts, one after the other; None of others than ASCII texts of one length."""
    if isinstance(values[0], bytes):
        return b"".join(values)
    if not all(isinstance(value, str) for value in values) or len(set(map(len, values))) > 1:
        return None
    joined = "".join(values)
    return joined.encode() if joined.isascii() else None


def make_face_ids(count: int) -> list[str]:
    """Return new ids in the order of time, as UUIDs of version 7 (RFC 9562): an index of them grows at its end.

    Their order within a millisecond is in the 18 bits that follow the time; the last 56 are random.
    """
    order = np.arange(count)
    ids = np.frombuffer(secrets.token_bytes(UUID_BYTES * count), np.uint8).reshape(count, UUID_BYTES).copy()
    ids[:, :6] = np.frombuffer((time.time_ns() // 1_000_000).to_bytes(6), np.uint8)
    ids[:, 6] = 0x70 | order >> 14 & 0x0F
    ids[:, 7] = order >> 6 & 0xFF
    ids[:, 8] = 0x80 | order & 0x3F
    characters = np.full((count, UUID_CHARACTERS), ord("-"), np.uint8)
    is_digit = np.ones(UUID_CHARACTERS, np.bool_)
    is_digit[[8, 13, 18, 23]] = False
    characters[:, is_digit] = np.frombuffer(ids.tobytes().hex().encode(), np.uint8).reshape(count, 2 * UUID_BYTES)
    text = characters.tobytes().decode()
    return [text[start : start + UUID_CHARACTERS] for start in range(0, len(text), UUID_CHARACTERS)]
