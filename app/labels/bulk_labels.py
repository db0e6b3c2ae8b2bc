"""Parse labels in bulk: CSV with a header, or one JSON object per line (if the text starts with a brace)."""

import csv
import io
from collections.abc import Iterable, Iterator

from anyio import from_thread
from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from app.errors import Invalid
from app.labels.schemas import LabelIn, Refused

COLUMNS = tuple(LabelIn.model_fields)
NEEDED = {name for name, field in LabelIn.model_fields.items() if field.is_required()}


def read_body(request: Request) -> bytes:
    """Return the raw body, or the first file of a form. AuthMiddleware has limited its length. Raises Invalid."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return from_thread.run(request.body)
    form: FormData = from_thread.run(request.form)  # type: ignore[arg-type]
    try:
        for value in form.values():
            if isinstance(value, UploadFile):
                return value.file.read()
    finally:
        from_thread.run(form.close)
    raise Invalid("the form has no file")


def parse_labels(data: bytes) -> tuple[list[tuple[int, LabelIn]], list[Refused]]:
    """Return the labels, each with the number of its record from 0, and the records that are wrong. Raises Invalid."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid("labels in bulk must be UTF-8 text: CSV, or one JSON object per line") from error
    good, wrong = [], []
    for index, record in enumerate(_split_records(text)):
        try:
            if isinstance(record, str):
                good.append((index, LabelIn.model_validate_json(record)))
            else:
                good.append((index, LabelIn.model_validate(record)))
        except ValidationError as error:
            wrong.append(Refused(index=index, code="InvalidParameter", detail=_describe_error(error)))
    return good, wrong


def _split_records(text: str) -> Iterable[str | dict[str, str]]:
    if text.lstrip().startswith("{"):
        return [record for record in text.split("\n") if record.strip()]
    return _iterate_rows(text)


def _iterate_rows(text: str) -> Iterator[dict[str, str]]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if not set(header) >= NEEDED or not set(header) <= set(COLUMNS):
            raise Invalid(f"the first line of the CSV must name its columns, out of: {', '.join(COLUMNS)}")
        for row in rows:
            if row:
                yield {name: value for name, value in zip(header, row, strict=False) if value}
    except csv.Error as error:
        raise Invalid(f"this is neither CSV nor JSON lines: {error}") from error


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'line'}: {first['msg']}"
