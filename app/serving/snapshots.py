"""Snapshots of indexes on the disk, so that a restart need not read every row again.

A file of FAISS is never parsed before the record beside it, which carries its hash, was found to be ours.
"""

import hashlib
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

from app.serving.index_builder import Place
from ml import indexes
from ml.errors import Corrupt
from ml.indexes import Device
from ml.indexes.base import Index

log = logging.getLogger("likeness.engine")

ANOTHERS_SECONDS = 60.0


class Shelf:
    """`<place>.json`, signed under a key of this folder, names `<place>.<nonce>.index`, its hash and its change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = _own_key(folder / "key")

    def save(self, place: Place, index: Index, change: int) -> None:
        """Written whole or not at all; nobody may change the index meanwhile."""
        name = self._name(place)
        file = self.folder / f"{name}.{secrets.token_hex(8)}.index"
        facts = asdict(place) | {"file": file.name, "change": change, "vectors": len(index)}
        facts["sha256"] = index.save(file)
        record, part, before = self.folder / f"{name}.json", file.with_suffix(".json.part"), self._named(place)
        with part.open("w") as written:
            json.dump(facts | {"mac": self._mac(facts)}, written)
            written.flush()
            os.fsync(written.fileno())
        part.replace(record)
        if before is not None:
            before.unlink(missing_ok=True)

    def load(self, place: Place, device: Device) -> tuple[Index, int] | None:
        """The index and the change that it stands at; None where there is none, or it is not what was saved."""
        record = self.folder / f"{self._name(place)}.json"
        if not record.exists():
            return None
        try:
            facts: dict[str, Any] = json.loads(record.read_text())
            mac = facts.pop("mac")
            if not hmac.compare_digest(str(mac), self._mac(facts)) or facts != facts | asdict(place):
                raise Corrupt("its record is not ours")
            return indexes.load(self.folder / facts["file"], facts["sha256"], device=device), facts["change"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, Corrupt) as error:
            log.warning("index.snapshot_refused collection=%s task=%s error=%s", place.collection, place.task, error)
            self.forget(place)
            return None

    def forget(self, place: Place) -> None:
        """After a removal too: what was removed must not stay in a file."""
        self._remove(self.folder.glob(f"{self._name(place)}.*"))

    def keep_only(self, places: Iterable[Place]) -> None:
        """Forgets all others, of collections and models that are no more, and what was cut short. What is quite new
        may be another process's, on its way."""
        kept = {self.folder / "key"}
        for place in places:
            kept |= {self.folder / f"{self._name(place)}.json", self._named(place) or self.folder}
        old = time.time() - ANOTHERS_SECONDS
        self._remove(p for p in self.folder.iterdir() if p not in kept and p.stat().st_mtime < old)

    def _named(self, place: Place) -> Path | None:
        """The file that the place's record names, right or wrong."""
        try:
            told = json.loads((self.folder / f"{self._name(place)}.json").read_text())["file"]
            return self.folder / Path(told).name
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @staticmethod
    def _name(place: Place) -> str:
        return hashlib.sha256(json.dumps(asdict(place), sort_keys=True).encode()).hexdigest()[:32]

    def _mac(self, facts: dict[str, Any]) -> str:
        return hmac.new(self._key, json.dumps(facts, sort_keys=True).encode(), "sha256").hexdigest()

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        for path in list(paths):
            path.unlink(missing_ok=True)


def _own_key(path: Path) -> bytes:
    """Made once, by whoever comes first, for the service's own eyes."""
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
