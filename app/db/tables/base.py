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
BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself


def now() -> float:
    return time.time()


def new_id() -> str:
    """Return a new unique id. Ids sort by the time at which they were made."""
    return f"{time.time_ns() // 1000:014x}{os.urandom(5).hex()}"


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
