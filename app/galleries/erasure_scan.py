"""Search every store of an installation for erased bytes: the files of the home, and the tables of the database.

The files of SQLite are searched as they are, with free pages and write-ahead log. Compressed bytes are not recognised.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Engine, MetaData, Row, Table, select

from app.db.session import reading
from app.db.tables import Collection, Face
from app.storage.blob_store import Blobs
from app.storage.fingerprints import MAX_BYTES, FingerprintFinder
from app.storage.segments.collection_segments import is_segment
from app.storage.segments.segment_file import split_segment

BLOCK_BYTES = 4 * 2**20
NO_FILE = ""
"""The name for bytes of a segment that belong to no stored file."""
ROWS_PER_BLOCK = 1_000
TABLES_OF_PEOPLE = frozenset({"subjects", "faces", "labels"})
"""A text that is found in their rows belongs to somebody who is stored now."""
MERGED_SUBJECTS = "merged_subjects"
"""The column of a table of people that names others, who are not stored any more."""

Report = Callable[[int], None]
"""Is called with the number of bytes that were searched since the last call."""


@dataclass(frozen=True)
class ErasedBytes:
    """What to search for. finder: of fingerprints; texts: the name under which it is reported -> its encodings"""

    finder: FingerprintFinder
    texts: dict[str, set[bytes]] = field(default_factory=dict)

    def find(self, block: bytes) -> Iterator[tuple[str, str]]:
        """Yield (kind, identity) of everything in a block."""
        for fingerprint in self.finder.find(block):
            yield fingerprint.kind, fingerprint.mac
        for name, encodings in self.texts.items():
            yield from (("text", name) for data in encodings for _ in range(block.count(data)))

    @property
    def overlap(self) -> int:
        """How many bytes of a block are searched again with the next one."""
        return max([MAX_BYTES, *(len(data) for encodings in self.texts.values() for data in encodings)]) - 1


@dataclass
class ScanResult:
    """hits: (store, kind) -> how often

    in_use: identities of texts that belong to somebody who is stored now; copies: those of photos, crops, descriptors
    and vectors of faces that are stored now, since the same photo or imported vector was enrolled for them
    """

    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_use: set[str] = field(default_factory=set)
    copies: set[str] = field(default_factory=set)
    searched_bytes: int = 0


def scan_stores(database: Engine, home: Path, erased: ErasedBytes, report: Report = lambda count: None) -> ScanResult:
    """Search all tables and all files of the home: the stored people first, then their photos, then everything else.

    A text that a stored person has too cannot be told from the erased one: it is not reported, but counted as in use.
    Bytes of a photo or imported vector that is stored for another face are counted as copies. Raises OSError.
    """
    return _Scan(database, home, erased, report).run()


class _Scan:
    """One search.

    copied_faces: pks of stored faces in whose files something erased was found; external_models: those whose embeddings
    are imported vectors, which have no files
    """

    def __init__(self, database: Engine, home: Path, erased: ErasedBytes, report: Report) -> None:
        self.database, self.home, self.erased, self.report = database, home, erased, report
        self.result = ScanResult()
        self.copied_faces: set[int] = set()
        with reading(database) as session:
            self.external_models = set(session.scalars(select(Collection.external_model)))

    def run(self) -> ScanResult:
        tables = MetaData()
        tables.reflect(self.database)
        files = sorted(self._list_files())
        photos = [path for path in files if self._get_blob(path) is not None]
        of_stored, others = _part_columns(sorted(tables.tables.values(), key=lambda table: table.name))
        for columns in of_stored:
            self._search_columns(columns, are_of_stored=True)
        self._search_files(photos)
        for columns in others:
            self._search_columns(columns)
        self._search_files(path for path in files if self._get_blob(path) is None)
        return self.result

    def _list_files(self) -> Iterator[Path]:
        """Yield the files of the home. A folder that vanishes meanwhile, or may not be read, has none."""
        for folder, _, names in os.walk(self.home, onerror=_raise_unless_missing):
            yield from (path for name in names if (path := Path(folder, name)).is_file())

    def _get_blob(self, path: Path) -> tuple[str, str] | None:
        """Return the collection and the name of a photo, crop or descriptor."""
        parts = path.relative_to(self.home).parts
        if len(parts) < 3 or parts[0] != "blobs" or not parts[1].startswith("c-"):
            return None
        return parts[1].removeprefix("c-"), "/".join(parts[2:])

    def _search_columns(self, columns: Sequence[Column[Any]], *, are_of_stored: bool = False) -> None:
        """Search columns of a table. are_of_stored: whether a text in them belongs to somebody who is stored now"""
        table = columns[0].table.name
        for rows in _read_rows(self.database, columns):
            if table == "embeddings":
                copied = [row.vector for row in rows if self._is_copied(row)]
                self.result.copies.update(mac for vector in copied for _, mac in self.erased.find(vector))
            for kind, identity in self._find(_join_rows(rows)):
                if kind == "text" and are_of_stored:
                    self.result.in_use.add(identity)
                elif identity not in self.result.in_use | self.result.copies:
                    self.result.hits[f"table {table}", kind] += 1

    def _is_copied(self, embedding: Row[Any]) -> bool:
        """Whether a vector that is found there was enrolled for the stored face of the row."""
        return embedding.face_pk in self.copied_faces or embedding.model_id in self.external_models

    def _search_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            store, blob = str(path.relative_to(self.home)), self._get_blob(path)
            if blob is None or not is_segment(blob[1]):
                self._search_blocks(store, blob, read_blocks(path, self.erased.overlap))
                continue
            for name, data in split_segment(str(path)):
                self._search_blocks(store, (blob[0], name or NO_FILE), [data])

    def _search_blocks(self, store: str, blob: tuple[str, str] | None, blocks: Iterable[bytes]) -> None:
        """Search a file. blob: its collection and name, if it is a photo, crop or descriptor"""
        faces: set[int] | None = None
        for block in blocks:
            for kind, identity in self._find(block):
                if blob is not None and kind != "text":
                    faces = _find_faces(self.database, *blob) if faces is None else faces
                    self._note_copy(store, kind, identity, faces)
                elif identity not in self.result.in_use | self.result.copies:
                    self.result.hits[store, kind] += 1

    def _note_copy(self, store: str, kind: str, identity: str, faces: set[int]) -> None:
        """Note what was found in a file of these faces; a file of none should not be there."""
        if faces:
            self.copied_faces |= faces
            self.result.copies.add(identity)
        else:
            self.result.hits[store, kind] += 1

    def _find(self, block: bytes) -> Iterator[tuple[str, str]]:
        yield from self.erased.find(block)
        self.result.searched_bytes += len(block)
        self.report(len(block))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, PermissionError)):
        raise error


def _find_faces(database: Engine, collection: str, name: str) -> set[int]:
    """Return the pks of the stored faces whose photo, crop or descriptor a file is."""
    try:
        image, number = Blobs.parse_name(name)
    except ValueError:  # not a file of ours
        return set()
    chosen = select(Face.pk).where(Face.collection_id == collection, Face.image_id == image)
    with reading(database) as session:
        return set(session.scalars(chosen if number is None else chosen.where(Face.number == number)))


def read_blocks(path: Path, overlap: int) -> Iterator[bytes]:
    """Yield a file in blocks that overlap. A file that vanishes meanwhile ends."""
    try:
        with path.open("rb") as file:
            tail = b""
            while data := file.read(BLOCK_BYTES):
                yield tail + data
                tail = data[-overlap:]
    except FileNotFoundError:
        return


def _part_columns(tables: Iterable[Table]) -> tuple[list[list[Column[Any]]], list[list[Column[Any]]]]:
    """Return the columns of each table that say something of stored people, and those of each that do not."""
    of_stored, others = list[list[Column[Any]]](), list[list[Column[Any]]]()
    for table in tables:
        parts: tuple[list[Column[Any]], list[Column[Any]]] = ([], [])
        for column in table.columns:
            parts[table.name not in TABLES_OF_PEOPLE or column.name == MERGED_SUBJECTS].append(column)
        of_stored.append(parts[False])
        others.append(parts[True])
    return list(filter(None, of_stored)), list(filter(None, others))


def _read_rows(database: Engine, columns: Sequence[Column[Any]]) -> Iterator[Sequence[Row[Any]]]:
    """Yield the rows of columns of a table in steps."""
    with (
        database.connect() as connection,
        connection.execution_options(yield_per=ROWS_PER_BLOCK).execute(select(*columns)) as rows,
    ):
        yield from rows.partitions()


def _join_rows(rows: Sequence[Row[Any]]) -> bytes:
    return b"\n".join(data for row in rows for value in row for data in _encode(value))


def _encode(value: Any) -> list[bytes]:
    """Return the bytes of a value as they may be stored; none for numbers."""
    if isinstance(value, str):
        return [value.encode()]
    if isinstance(value, (bytes, memoryview)):
        return [bytes(value)]
    if isinstance(value, (dict, list)):
        return [json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode()]
    return []
