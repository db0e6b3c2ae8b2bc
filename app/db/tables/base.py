"""What all tables share."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import JSON, BigInteger, Dialect, Integer, TypeDecorator
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeEngine

from app.errors import Busy

log = logging.getLogger("likeness.database")

DEFAULT_FPIR = 0.01
BUILT_IN_TASK = "identity"
POINTERS = ("champion", "challenger", "previous")
"""The columns of a deployment that name a model."""
ID_BYTES = 5
"""Of an id, drawn at random, beside the microseconds of its time."""
BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself


def now() -> float:
    return time.time()


def new_id() -> str:
    """Return a new unique id. Ids sort by the time at which they were made."""
    [made] = new_ids(1)
    return made


def new_ids(count: int) -> list[str]:
    """Return as many new unique ids, which the operating system draws at once."""
    made_at, digits = time.time_ns() // 1000, os.urandom(ID_BYTES * count).hex()
    return [f"{made_at:014x}{digits[start : start + 2 * ID_BYTES]}" for start in range(0, len(digits), 2 * ID_BYTES)]


class MetadataColumn(TypeDecorator[dict[str, Any]]):
    """JSON of a client. What is damaged is read as {}, so that the row can be listed."""

    impl = JSON
    cache_ok = True

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> TypeEngine[Any]:
        """Let an index of a JSON path keep the type of a path."""
        return self.impl_instance.coerce_compared_value(op, value)

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any] | None:
        process = super().result_processor(dialect, coltype)

        def read(value: Any) -> Any:
            try:
                return value if process is None else process(value)
            except Busy as error:
                log.error("metadata.damaged error=%s", error)
                return {}

        return read


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON, list[str]: JSON}  # noqa: RUF012
