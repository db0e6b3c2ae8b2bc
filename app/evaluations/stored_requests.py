"""Read the requests of evaluations without the texts of their files, which may have megabytes."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import JSON, ColumnElement, cast, func, literal, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.orm import Session

from app.db.tables import Evaluation


def make_public_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request in which files are listed by name."""
    return request | {"files": [file["name"] for file in request["files"]]}


def read_requests(session: Session, evaluations: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return id -> request, in which files are listed by name. The database leaves their texts out."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    request, names = _split_on_sqlite() if is_sqlite else _split_on_postgres()
    chosen = select(Evaluation.id, type_coerce(request, JSON), type_coerce(names, JSON))
    rows = session.execute(chosen.where(Evaluation.id.in_(evaluations)))
    return {evaluation: {**request, "files": names} for evaluation, request, names in rows}


def _split_on_sqlite() -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return a request without its files, and their names."""
    files = func.json_each(Evaluation.request, "$.files").table_valued("value")
    names = select(func.json_group_array(func.json_extract(files.c.value, "$.name"))).select_from(files)
    return func.json_remove(Evaluation.request, "$.files"), names.scalar_subquery()


def _split_on_postgres() -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    request = cast(Evaluation.request, JSONB)
    return request.op("-")(literal("files")), func.jsonb_path_query_array(request, cast("$.files[*].name", JSONPATH))
