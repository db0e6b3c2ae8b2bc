"""Compare names of collections in JSON columns, on SQLite and on PostgreSQL."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, TableValuedAlias, exists, func, select


@dataclass(frozen=True)
class JsonNames:
    """Conditions on the names of collections in JSON columns. collections: the names that are not "other" """

    dialect: str
    collections: tuple[str, ...]

    def is_named(self, column: Any, member: str) -> ColumnElement[bool]:
        """Whether the member of an object is one of the names."""
        return self.extract_text(column, member).in_(self.collections)

    def has_other_member(self, column: Any, path: tuple[str, ...], member: str) -> ColumnElement[bool]:
        """Whether any object of the list at the path has another name as its member; null is none."""
        if self.dialect == "sqlite":
            items = func.json_each(column, _to_sqlite_path(path))
        else:
            items = func.json_array_elements(func.json_extract_path(column, *path))
        return self._has_other(items, "value", member)

    def has_other_value(self, column: Any) -> ColumnElement[bool]:
        """Whether the list holds another name."""
        function = func.json_each if self.dialect == "sqlite" else func.json_array_elements_text
        return self._has_other(function(column), "value")

    def has_other_key(self, column: Any, path: tuple[str, ...]) -> ColumnElement[bool]:
        """Whether the object at the path has another name as a key; no object has none."""
        return self._has_other(self._list_keys(column, path), "key")

    def select_keys(self, column: Any, path: tuple[str, ...]) -> Select[tuple[str]]:
        """Select the keys of the object at the path; no object has none."""
        return select(self._name_rows(self._list_keys(column, path), "key").c.key)

    def _list_keys(self, column: Any, path: tuple[str, ...]) -> Any:
        if self.dialect == "sqlite":
            return func.json_each(column, _to_sqlite_path(path))
        return func.json_object_keys(func.json_extract_path(column, *path))

    def extract_text(self, column: Any, member: str) -> ColumnElement[Any]:
        """Return the text that is the member of an object."""
        if self.dialect == "sqlite":
            return func.json_extract(column, _to_sqlite_path((member,)))
        return func.json_extract_path_text(column, member)

    def _has_other(self, function: Any, field: str, member: str | None = None) -> ColumnElement[bool]:
        """Whether a row that the function returns has another name in its field, or in a member of the object there."""
        rows = self._name_rows(function, field)
        name = rows.c[field] if member is None else self.extract_text(rows.c[field], member)
        return exists(select(1).select_from(rows).where(name.not_in(self.collections)))

    def _name_rows(self, function: Any, field: str) -> TableValuedAlias:
        rows: TableValuedAlias = function.table_valued(field)
        return rows if self.dialect == "sqlite" else rows.render_derived()


def _to_sqlite_path(path: tuple[str, ...]) -> str:
    return ".".join(("$", *path))
