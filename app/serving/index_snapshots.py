"""Save indexes as snapshots on disk, so that a restart need not read every row again.

A file of an index is parsed only if the record beside it, which has its hash, is signed by this service.
"""

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.serving.index_builder import IndexKey
from app.storage.installation_key import read_secret
from ml import indexes
from ml.errors import Corrupt
from ml.files import atomic_write, get_modified_at, hash_bytes, parse_json
from ml.indexes import Device
from ml.indexes.base import Index

log = logging.getLogger("likeness.engine")

MIN_SAVED_VECTORS = 1_000
"""An index of fewer has no snapshot: to read its rows takes as long, and there may be thousands of such indexes."""
MIN_ORPHAN_AGE_SECONDS = 60.0
"""Another process may still be writing a file that is younger than this."""

FILE_NAME = re.compile(r"[0-9a-f]+\.(?P<collection>[0-9a-f]+)-(?P<change>\d+)-[0-9a-f]+\.index")
FILE_PATTERNS = "*.index.*", "*.index"
"""Of the files of indexes: first of those that are being written, since one that is complete is renamed."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, Corrupt)
"""What a record raises that is missing, torn or altered."""


@dataclass(frozen=True)
class SavedIndex:
    """An index as a snapshot has it. contents: which faces it holds, see `hash_contents`; empty if that is not known"""

    index: Index
    change: int
    contents: str


class SnapshotStore:
    """`<name>.json`, signed with the key of this folder, names the file of an index, its hash and its change.

    The file, `<name>.<collection>-<change>-<nonce>.index`, says by its own name which erased faces it may hold, since
    a process that is killed while it writes leaves no record. `<name>.check`, signed too, is what a check of the
    thresholds in that index has shown.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._signing_key = read_secret(folder / "key")

    def save(self, key: IndexKey, index: Index, change: int, contents: str) -> bool:
        """Write a snapshot completely or not at all. The index must not change meanwhile.

        Returns False if another process, which has removed faces, deletes it while it is written. Raises OSError.
        """
        name, previous_file = self._name(key), self._recorded_file(key)
        collection = _hash_collection(key.collection, key.collection_created_at)
        file = self.folder / f"{name}.{collection}-{change}-{secrets.token_hex(8)}.index"
        record = _describe_key(key) | {"file": file.name, "change": change, "contents": contents}
        try:
            record["sha256"] = index.save(file)
            self._write_record(self.folder / f"{name}.json", record)
        except FileNotFoundError:
            if not self.folder.exists():
                raise
            return False
        if previous_file is not None:
            previous_file.unlink(missing_ok=True)
        return True

    def load(self, key: IndexKey, device: Device) -> SavedIndex | None:
        """Return the index as it was saved; None if there is no snapshot, or it was altered."""
        path = self.folder / f"{self._name(key)}.json"
        if not path.exists():
            return None
        try:
            record = self._read_record(path, key)
            index = indexes.load(self.folder / record["file"], record["sha256"], device=device)
            return SavedIndex(index, record["change"], record.get("contents", ""))
        except UNREADABLE as error:
            log.warning("index.snapshot_refused collection=%s task=%s error=%s", key.collection, key.task, error)
            self.delete(key)
            return None

    def save_check(self, key: IndexKey, result: Mapping[str, Any]) -> None:
        """Write what a check of the thresholds has shown. Raises OSError."""
        self._write_record(self.folder / f"{self._name(key)}.check", _describe_key(key) | {"result": dict(result)})

    def load_check(self, key: IndexKey) -> dict[str, Any] | None:
        """Return what the last check of the thresholds has shown; None if it was not saved, or was altered."""
        path = self.folder / f"{self._name(key)}.check"
        if not path.exists():
            return None
        try:
            return dict(self._read_record(path, key)["result"])
        except UNREADABLE as error:
            log.warning("gallery.check_refused collection=%s task=%s error=%s", key.collection, key.task, error)
            return None

    def delete(self, key: IndexKey) -> None:
        """Delete a snapshot. This also happens when a face is deleted, which must not stay in a file.

        A file that cannot be deleted is only logged: the index goes on, and an erasure waits for the file.
        """
        with _log_failure(self.folder):
            _unlink(self.folder.glob(f"{self._name(key)}.*"))

    def delete_all_but(self, keys: Iterable[IndexKey]) -> None:
        """Delete the snapshots of all other keys, and unfinished files, unless they are new."""
        kept = {self.folder / "key"}
        for key in keys:
            kept |= {self.folder / f"{self._name(key)}.{kind}" for kind in ("json", "check")}
            kept.add(self._recorded_file(key) or self.folder)
        with _log_failure(self.folder):
            _unlink(path for path in self.folder.iterdir() if path not in kept and _is_orphan(path))

    def delete_erased(self, collection: str, collection_created_at: float, change: int) -> int:
        """Delete the snapshots of a collection from before a change, and what killed processes have left of others.

        A process that is still writing such a file finds that it is gone. Returns how many complete snapshots were
        deleted. Raises OSError.
        """
        named, deleted = set[str](), 0
        for path in self.folder.glob("*.json"):
            record = _read_record(path)
            is_of_collection = record.get("collection") == collection
            is_same = record.get("collection_created_at") == collection_created_at
            if is_of_collection and (not is_same or record.get("change", 0) < change):
                _unlink(self.folder.glob(f"{path.stem}.*"))
                deleted += 1
            else:
                named.add(str(record.get("file")))
        for pattern in FILE_PATTERNS:
            unnamed = (path for path in self.folder.glob(pattern) if path.name not in named)
            _unlink(path for path in unnamed if _may_hold_erased(path, collection, collection_created_at, change))
        return deleted

    def _write_record(self, path: Path, record: dict[str, Any]) -> None:
        with atomic_write(path) as written:
            written.write(json.dumps(record | {"mac": self._sign(record)}).encode())

    def _read_record(self, path: Path, key: IndexKey) -> dict[str, Any]:
        """Return a record of this key. Raises one of UNREADABLE."""
        record: dict[str, Any] = parse_json(path.read_text())
        mac = record.pop("mac")
        if not hmac.compare_digest(str(mac), self._sign(record)) or record != record | _describe_key(key):
            raise Corrupt("its record is not signed by this service")
        return record

    def _recorded_file(self, key: IndexKey) -> Path | None:
        """The index file that the record of a key names, whether the record is valid or not."""
        try:
            name = parse_json((self.folder / f"{self._name(key)}.json").read_text())["file"]
            return self.folder / Path(name).name
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @staticmethod
    def _name(key: IndexKey) -> str:
        return hash_bytes(json.dumps(_describe_key(key), sort_keys=True).encode())[:32]

    def _sign(self, record: dict[str, Any]) -> str:
        return hmac.new(self._signing_key, json.dumps(record, sort_keys=True).encode(), "sha256").hexdigest()


def _describe_key(key: IndexKey) -> dict[str, Any]:
    """Return the fields of a key. Without a compensation, they are those of earlier versions of the service."""
    return {name: value for name, value in asdict(key).items() if name != "compensation" or value}


def _hash_collection(collection: str, created_at: float) -> str:
    """Return what stands for a collection in the names of files."""
    return hash_bytes(json.dumps([collection, created_at]).encode())[:16]


def _may_hold_erased(path: Path, collection: str, created_at: float, change: int) -> bool:
    """Whether a file that no record names may hold what was erased from a collection by a change.

    So may one that an earlier version has named, or that nobody writes any more.
    """
    named = FILE_NAME.match(path.name)
    if named is None:
        return True
    is_of_collection = named["collection"] == _hash_collection(collection, created_at)
    return (is_of_collection and int(named["change"]) < change) or _is_orphan(path)


def _is_orphan(path: Path) -> bool:
    return get_modified_at(path) < time.time() - MIN_ORPHAN_AGE_SECONDS


def _read_record(path: Path) -> dict[str, Any]:
    """Return the record in a file, whether it is valid or not; an empty one if it cannot be read."""
    try:
        record = parse_json(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


@contextmanager
def _log_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("index.snapshot_not_deleted folder=%s error=%s", folder, error)


def _unlink(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)
