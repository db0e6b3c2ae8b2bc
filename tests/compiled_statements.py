"""Compile each SQL statement once in a process of tests, instead of once for each database that a test opens."""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

from app.db import session
from app.snapshots import reader, rows

MAX_STATEMENTS = 4_000


def share_compiled_statements() -> None:
    """Have all databases of one kind share their compiled statements, for the rest of this process.

    A service opens one database, and compiles each statement once. Tests open one each; a quarter of the time of some
    went into compiling the same statements again.
    """
    for module in (session, reader, rows):
        vars(module)["create_engine"] = _create_sharing_engine


def _create_sharing_engine(url: str, **options: Any) -> Engine:
    engine = create_engine(url, **options)
    kind = _make_equal_dialects(type(engine.dialect), options.get("json_deserializer"))
    engine.dialect.__class__ = kind
    engine.dialect._type_memos = _share_types(kind)
    engine._compiled_cache = _share_statements(kind)
    return engine


@cache
def _make_equal_dialects(dialect: type[Dialect], json_deserializer: Callable[[str], Any] | None) -> type[Dialect]:
    """Derive a dialect whose instances are equal, since SQLAlchemy keeps a statement by the dialect it is compiled for.

    json_deserializer: the one option that compiled statements hold and that is not the same for all databases
    """
    methods = {"__eq__": lambda self, other: type(self) is type(other), "__hash__": lambda self: hash(type(self))}
    return type(dialect.__name__, (dialect,), {"supports_statement_cache": dialect.supports_statement_cache, **methods})


@cache
def _share_statements(kind: type[Dialect]) -> LRUCache[Any, Any]:
    return LRUCache(MAX_STATEMENTS)


@cache
def _share_types(kind: type[Dialect]) -> WeakKeyDictionary[Any, Any]:
    """What dialects know of types, such as how to read their values, which compiled statements refer to."""
    return WeakKeyDictionary()
