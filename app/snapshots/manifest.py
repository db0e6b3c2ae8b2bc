"""The manifest of a snapshot: what it holds, and how to tell that it is whole."""

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from app.errors import Invalid, NotFound
from app.storage.snapshot_folders import MANIFEST
from ml.files import atomic_write, parse_json

FORMAT = 1
ROWS, FILES = "rows.sqlite", "files.tar"
ROWS_NAME = re.compile(r"rows(-[0-9a-f]{32})?\.sqlite")
MAX_NUMBER = 2**53
"""More than a service ever counts. Beyond the largest number of a row no row can be added."""
MAX_MANIFEST_BYTES = 64 * 2**20
"""It lists the files that are missing."""


@dataclass(frozen=True)
class SnapshotManifest:
    """What a snapshot holds.

    product: the version of the service that wrote it; schema: the revision of its rows
    collection: the only one that it holds; None: all of the service
    created_at: seconds since 1970; rows: table -> number of rows; files, bytes: number and total size in `files.tar`
    rows_sha256: of the rows; sequences: table -> the highest number that was ever given to a row
    missing: files that rows name and that could not be copied
    rows_file: the name of the file with the rows; an erasure writes a new one
    """

    product: str
    schema: str
    collection: str | None
    created_at: float
    rows: dict[str, int]
    files: int
    bytes: int
    rows_sha256: str
    sequences: dict[str, int]
    missing: list[str]
    format: int = FORMAT
    rows_file: str = ROWS

    def write(self, folder: Path) -> None:
        """Write the manifest, which makes the snapshot complete."""
        with atomic_write(folder / MANIFEST) as file:
            file.write(json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises NotFound if there is no complete snapshot in the folder, Invalid if this version cannot read it."""
        try:
            fields: dict[str, Any] = parse_json(_read_text(folder / MANIFEST))
        except FileNotFoundError as error:
            raise NotFound(f"{folder} holds no complete snapshot: {MANIFEST} is missing") from error
        except ValueError as error:
            raise Invalid(f"{folder / MANIFEST} is damaged; use another snapshot") from error
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise Invalid(
                f"{folder} was written in a format that this version does not know; restore it with the version "
                f"that wrote it ({fields.get('product') if isinstance(fields, dict) else 'unknown'})"
            )
        try:
            manifest = cls(**fields)
            counts = [*manifest.rows.values(), *manifest.sequences.values(), manifest.files, manifest.bytes]
        except (TypeError, AttributeError) as error:
            raise Invalid(f"{folder / MANIFEST} is damaged; use another snapshot") from error
        if not all(map(_is_count, counts)):
            raise Invalid(f"{folder / MANIFEST} is damaged: a count in it cannot be one; use another snapshot")
        if not ROWS_NAME.fullmatch(str(manifest.rows_file)):
            raise Invalid(f"{folder / MANIFEST} is damaged: {manifest.rows_file!r} cannot hold rows")
        for name in (manifest.rows_file, FILES):
            _check_plain(folder / name)
        return manifest

    def describe(self) -> str:
        """Describe the snapshot in one line."""
        scope = "the whole service" if self.collection is None else f"the collection {self.collection!r}"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.created_at))
        return (
            f"{scope}, {at}: {self.rows.get('faces', 0):,} faces, {sum(self.rows.values()):,} rows, "
            f"{self.files:,} files, {self.bytes / 2**20:,.1f} MiB"
        )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _read_text(path: Path) -> str:
    """Return the text of a manifest. Raises FileNotFoundError, ValueError, and Invalid if it cannot be a manifest."""
    _check_plain(path)
    with path.open("rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise Invalid(f"{path} has more than {MAX_MANIFEST_BYTES:,} bytes; use another snapshot")
    return data.decode()


def _check_plain(path: Path) -> None:
    """Raises Invalid for a pipe, a device or a folder: to read one may never end."""
    if path.exists() and not path.is_file():
        raise Invalid(f"{path} is no file; use another snapshot")
