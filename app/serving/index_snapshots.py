"""Save indexes as snapshots on disk, so that a restart need not read every row again.

A file of an index is parsed only if the record beside it, which has its hash, is signed by this service.
"""

import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.serving.index_builder import IndexKey
from ml import indexes
from ml.errors import Corrupt
from ml.files import atomic_write, hash_bytes
from ml.indexes import Device
from ml.indexes.base import Index

log = logging.getLogger("likeness.engine")

MIN_ORPHAN_AGE_SECONDS = 60.0
"""Another process may still be writing a file that is younger than this."""


class SnapshotStore:
    """`<name>.json`, signed with the key of this folder, names `<name>.<nonce>.index`, its hash and its change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._signing_key = _read_signing_key(folder / "key")

    def save(self, key: IndexKey, index: Index, change: int) -> None:
        """Write a snapshot completely or not at all. The index must not change meanwhile."""
        name, previous_file = self._name(key), self._recorded_file(key)
        file = self.folder / f"{name}.{secrets.token_hex(8)}.index"
        record = _describe_key(key) | {"file": file.name, "change": change, "vectors": len(index)}
        record["sha256"] = index.save(file)
        with atomic_write(self.folder / f"{name}.json") as written:
            written.write(json.dumps(record | {"mac": self._sign(record)}).encode())
        if previous_file is not None:
            previous_file.unlink(missing_ok=True)

    def load(self, key: IndexKey, device: Device) -> tuple[Index, int] | None:
        """Return the index and its last change; None if there is no snapshot, or it was altered."""
        path = self.folder / f"{self._name(key)}.json"
        if not path.exists():
            return None
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            mac = record.pop("mac")
            if not hmac.compare_digest(str(mac), self._sign(record)) or record != record | _describe_key(key):
                raise Corrupt("its record is not signed by this service")
            return indexes.load(self.folder / record["file"], record["sha256"], device=device), record["change"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, Corrupt) as error:
            log.warning("index.snapshot_refused collection=%s task=%s error=%s", key.collection, key.task, error)
            self.delete(key)
            return None

    def delete(self, key: IndexKey) -> None:
        """Delete a snapshot. This also happens when a face is deleted, which must not stay in a file."""
        _unlink(self.folder.glob(f"{self._name(key)}.*"))

    def delete_all_but(self, keys: Iterable[IndexKey]) -> None:
        """Delete the snapshots of all other keys, and unfinished files, unless they are new."""
        kept = {self.folder / "key"}
        for key in keys:
            kept |= {self.folder / f"{self._name(key)}.json", self._recorded_file(key) or self.folder}
        oldest_kept = time.time() - MIN_ORPHAN_AGE_SECONDS
        _unlink(path for path in self.folder.iterdir() if path not in kept and path.stat().st_mtime < oldest_kept)

    def _recorded_file(self, key: IndexKey) -> Path | None:
        """The index file that the record of a key names, whether the record is valid or not."""
        try:
            name = json.loads((self.folder / f"{self._name(key)}.json").read_text())["file"]
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


def _unlink(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink(missing_ok=True)


def _read_signing_key(path: Path) -> bytes:
    """Return the key of this folder. The first process that needs it makes it; only the service's user can read it."""
    if not path.exists():
        part = path.with_name(f"key.{secrets.token_hex(8)}")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, secrets.token_bytes(32))
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(part, path)
        except FileExistsError:
            log.info("index.key_was_there")
        finally:
            part.unlink()
    return path.read_bytes()
