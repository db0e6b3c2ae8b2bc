"""Parse labels in bulk: CSV with a header, or one JSON object per line (if the text starts with a brace)."""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from pydantic import ValidationError

from app.deps.server.json_limits import JsonLimits, check_json
from app.errors import Invalid
from app.labels.refusals import Refusals
from app.labels.schemas import MAX_LABELS, LabelIn, describe_first_error

COLUMNS = tuple(LabelIn.model_fields)
MAX_LINES = 10 * MAX_LABELS  # a note in CSV may have several
MAX_LINE_CHARACTERS = 65_536
LINE_LIMITS = JsonLimits(keys=64, values=128, depth=8)
NEEDED = {name for name, field in LabelIn.model_fields.items() if field.is_required()}


def parse_labels(data: bytes) -> tuple[list[tuple[int, LabelIn]], Refusals]:
    """Return the labels, each with the number of its record from 0, and the records that are wrong.

    Raises Invalid if there are more than MAX_LABELS records.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid("labels in bulk must be UTF-8 text: CSV, or one JSON object per line") from error
    good, wrong = [], Refusals()
    records = list(islice(_split_records(text), MAX_LABELS + 1))
    if len(records) > MAX_LABELS:
        raise Invalid(f"there are more than {MAX_LABELS:,} labels; send them in several requests")
    for index, record in enumerate(records):
        try:
            if isinstance(record, str):
                check_json(record, LINE_LIMITS)
                good.append((index, LabelIn.model_validate_json(record)))
            else:
                good.append((index, LabelIn.model_validate_strings(record)))
        except ValidationError as error:
            wrong.add(index, "InvalidParameter", describe_first_error(error))
        except Invalid as error:
            wrong.add(index, error.code, error.detail)
    return good, wrong


def _split_records(text: str) -> Iterable[str | dict[str, str]]:
    if re.match(r"\s*\{", text):
        return (record for record in _iterate_lines(text, "\n") if record.strip())
    return _iterate_rows(text)


def _iterate_lines(text: str, newline: str) -> Iterator[str]:
    """Yield the lines, blank ones included. newline: as io.StringIO takes it.

    Raises Invalid if there are too many lines or one is too long.
    """
    for count, row in enumerate(io.StringIO(text, newline=newline), 1):
        if count > MAX_LINES:
            raise Invalid(f"there are more than {MAX_LINES:,} lines; send them in several requests")
        if len(row) > MAX_LINE_CHARACTERS:
            raise Invalid(f"line {count:,} has more than {MAX_LINE_CHARACTERS:,} characters")
        yield row


def _iterate_rows(text: str) -> Iterator[dict[str, str]]:
    rows = csv.reader(_iterate_lines(text, ""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if not set(header) >= NEEDED or not set(header) <= set(COLUMNS):
            raise Invalid(f"the first line of the CSV must name columns, separated by commas, of: {', '.join(COLUMNS)}")
        for row in rows:
            if row:
                yield {name: value for name, value in zip(header, row, strict=False) if value}
    except csv.Error as error:
        raise Invalid(f"this is neither CSV nor JSON lines: {error}") from error
