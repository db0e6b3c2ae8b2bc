"""Parse the rows of a manifest, CSV or JSON lines. What the rows may say is checked by `manifest.py`."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from app.enrolment.archives.entries import Archive, Entry, make_refusal
from app.errors import TooLarge
from ml.errors import Unreadable

MAX_MANIFEST_BYTES = 256 * 2**20
MAX_ROW_CHARACTERS = 2**20
MAX_COLUMNS = 1_000
MAX_JSON_DEPTH = 64
MAX_QUOTED_CHARACTERS = 40
PERSONS_COLUMNS = ("consent", "retain_until")
"""What a person agreed to. It is recorded for the subject: as metadata of a face it would have no effect."""
BETWEEN_WORDS = re.compile(r"[\s_-]+")
SEPARATOR = re.compile(r"[;\t]")
OTHER_SEPARATOR = re.compile(r"[;\t|]")
"""Of columns, in files of other programs. A bar may be in a name, unless it is the only one."""
KNOWN_COLUMNS = ("file", "subject", "external_id", "external_image_id", "role", "source", "metadata")
KEPT_COLUMNS = set(KNOWN_COLUMNS) - {"metadata"}
MEANT_COLUMNS = {name.replace("_", ""): name for name in (*KNOWN_COLUMNS, *PERSONS_COLUMNS)}
"""A column in small letters without anything between them -> the column that is meant."""


def read_manifest_rows(archive: Archive, entry: Entry, max_rows: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the manifest in this entry.

    Raises Invalid if it is too long, damaged, or has a bad row; TooLarge if it has more than `max_rows`.
    """
    if entry.size > MAX_MANIFEST_BYTES:
        raise make_refusal(f"{entry.name} has {entry.size:,} bytes; the limit is {MAX_MANIFEST_BYTES:,}")
    try:
        with io.BufferedReader(_BlockReader(archive.iterate_blocks(entry))) as file:
            for count, row in enumerate(parse_rows(file, entry.name), 1):
                if count > max_rows:
                    raise TooLarge(f"{entry.name} has more than {max_rows:,} rows", code="ArchiveTooLarge")
                yield row
    except Unreadable as error:
        raise make_refusal(f"{entry.name}: {error}") from error


class _BlockReader(io.RawIOBase):
    """Presents blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def parse_rows(file: BinaryIO, name: str, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of a manifest, which is CSV or JSON lines by its name, in bounded memory.

    start: how many rows to leave out, which are not parsed to their end
    Raises Invalid with the number of a row that cannot be parsed.
    """
    text = io.TextIOWrapper(file, "utf-8-sig", newline="" if name.endswith(".csv") else None)
    rows = _parse_csv(text, start) if name.endswith(".csv") else _parse_json_lines(text, start)
    number = start
    try:
        for row in rows:
            yield _fold_metadata(row)
            number += 1
    except (ValueError, csv.Error) as error:
        raise make_refusal(f"line {number + 1} of {name}: {error}") from error
    finally:
        text.detach()  # the caller closes the file


def _parse_csv(text: io.TextIOWrapper, start: int) -> Iterator[dict[str, Any]]:
    lines = _RowLines(text)
    rows = csv.reader(lines)
    names = next(rows, [])
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"it has more than {MAX_COLUMNS:,} columns")
    _check_separator(list(filter(None, names)))
    _check_unique("column", list(filter(None, names)))
    lines.start_row()
    count = 0
    for row in rows:
        lines.start_row()
        if not row:
            continue
        count += 1
        if count <= start:
            continue
        if len(row) > len(names):
            raise ValueError("it has more columns than the first line")
        yield {name: value for name, value in zip(names, row, strict=False) if value}


def _check_separator(names: Sequence[str]) -> None:
    """Raises ValueError if something else than commas separates the names: all of a row would be one column."""
    separator = OTHER_SEPARATOR if len(names) == 1 else SEPARATOR
    for name in names:
        if separator.search(name):
            raise ValueError(f"columns must be separated by commas; {name[:MAX_QUOTED_CHARACTERS]!r} is no column name")


def _parse_json_lines(text: io.TextIOWrapper, start: int) -> Iterator[dict[str, Any]]:
    lines = _RowLines(text)
    count = 0
    for row_text in lines:
        lines.start_row()
        if not row_text.strip():
            continue
        count += 1
        if count <= start:
            continue
        row = _parse_json(row_text)
        if not isinstance(row, dict):
            raise ValueError("it is not a JSON object")
        yield row


class _RowLines:
    """Iterates over the lines of a text. Raises ValueError if the lines of one row have too many characters."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text, self._characters = text, 0

    def start_row(self) -> None:
        """The next line begins a row."""
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        row_text = self._text.readline(MAX_ROW_CHARACTERS + 1)
        self._characters += len(row_text)
        if self._characters > MAX_ROW_CHARACTERS:
            raise ValueError(f"it has more than {MAX_ROW_CHARACTERS:,} characters")
        if not row_text:
            raise StopIteration
        return row_text


def _parse_json(text: str) -> Any:
    """Parse JSON of at most MAX_JSON_DEPTH levels, whose objects have each key once. Raises ValueError."""
    problem = f"it is nested more than {MAX_JSON_DEPTH} levels deep"
    try:
        value = json.loads(text, object_pairs_hook=_make_object)
    except RecursionError as error:
        raise ValueError(problem) from error
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [child for parent in level for child in _list_children(parent)]
        if not level:
            return value
    raise ValueError(problem)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        _check_unique("key", [key for key, _ in pairs])
    return made


def _check_unique(kind: str, names: Sequence[str]) -> None:
    """Raises ValueError if a name is there twice: only the last of its values would count."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise ValueError(f"it has the {kind} {name[:MAX_QUOTED_CHARACTERS]!r} twice; each may be there once")


def _list_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _fold_metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Move columns other than the known ones into the metadata.

    Raises ValueError for those of a person, and for names that are nearly those of known ones.
    """
    if row.keys() <= KEPT_COLUMNS:
        return row | {"metadata": {}}
    for name in row:
        if name in KNOWN_COLUMNS or len(name) > MAX_QUOTED_CHARACTERS:
            continue
        meant = MEANT_COLUMNS.get(BETWEEN_WORDS.sub("", name).lower())
        if meant in PERSONS_COLUMNS:
            raise ValueError(f"{name} belongs to a subject: record it with PUT .../subjects/SUBJECT before the import")
        if meant is not None:
            raise ValueError(f"{name!r} is not read as {meant!r}: name it so, or put it into the metadata")
    stated = row.get("metadata", {})
    metadata = _parse_json(stated) if isinstance(stated, str) else stated
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a JSON object")
    others = {k: v for k, v in row.items() if k not in KNOWN_COLUMNS}
    return {k: v for k, v in row.items() if k in KNOWN_COLUMNS} | {"metadata": others | metadata}
