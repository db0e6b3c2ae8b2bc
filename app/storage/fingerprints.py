"""Fingerprints of bytes: a scan recognises what was erased by them, and nobody reads it from them without the key."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.storage.installation_key import InstallationKey

PREFIX_BYTES = 8
"""Shorter texts have no fingerprint: they would be found everywhere."""
MAX_BYTES = 256
MIN_DIFFERENT_BYTES = 5
"""Bytes that repeat too much, such as zeros, would be found everywhere."""
TABLE_BITS = 20

PatternKind = Literal["text", "vector", "photo", "crop", "descriptor"]


@dataclass(frozen=True)
class Fingerprint:
    """Of some bytes. prefix: keyed hash of the first PREFIX_BYTES, 32 bits; mac: keyed hash of all of them, in hex"""

    kind: PatternKind
    length: int
    prefix: int
    mac: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        return asdict(self)


class Fingerprinter:
    """Makes the fingerprints of an installation, and finds them again."""

    def __init__(self, key: InstallationKey) -> None:
        self._key = key
        self._factor = np.uint64(int.from_bytes(key.hash_bytes("prefix", b"")[:8], "little") | 1)

    def make(self, kind: PatternKind, data: bytes) -> Fingerprint | None:
        """Return the fingerprint of at most the first MAX_BYTES; None if they are too few or repeat too much."""
        data = data[:MAX_BYTES]
        if len(data) < PREFIX_BYTES or _repeats_too_much(data):
            return None
        prefix = int(self._hash_prefixes(np.frombuffer(data[:PREFIX_BYTES], "<u8"))[0])
        return Fingerprint(kind, len(data), prefix, self._hash(data))

    def make_all(self, kind: PatternKind, values: Iterable[bytes]) -> list[Fingerprint]:
        """Return the fingerprints of those values that can have one."""
        made = (self.make(kind, value) for value in values)
        return [fingerprint for fingerprint in made if fingerprint is not None]

    def _hash_prefixes(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(N,) -> (N,), of 32 bits each."""
        with np.errstate(over="ignore"):
            return (values * self._factor) >> np.uint64(32)

    def _hash(self, data: bytes) -> str:
        return self._key.hash_text("fingerprint", data.hex())

    def open_finder(self, fingerprints: Iterable[Fingerprint]) -> "FingerprintFinder":
        """Return what finds these fingerprints in blocks of bytes."""
        return FingerprintFinder(fingerprints, self._hash_prefixes, self._hash)


def _repeats_too_much(data: bytes) -> bool:
    """Whether these bytes have no fingerprint. In a file, a million positions may have only zeros after them."""
    return data.count(data[:1]) == len(data) or len(set(data)) < MIN_DIFFERENT_BYTES


class FingerprintFinder:
    """Finds fingerprints at any position of a block."""

    def __init__(self, fingerprints: Iterable[Fingerprint], hash_prefixes: Any, hash_bytes: Any) -> None:
        self._by_prefix: dict[int, dict[int, dict[str, list[Fingerprint]]]] = {}  # prefix -> length -> mac
        for one in fingerprints:
            of_length = self._by_prefix.setdefault(one.prefix, {}).setdefault(one.length, {})
            of_length.setdefault(one.mac, []).append(one)
        self._prefixes = np.array(sorted(self._by_prefix), np.uint64)
        self._may_be = np.zeros(1 << TABLE_BITS, np.bool_)
        self._may_be[self._prefixes & np.uint64((1 << TABLE_BITS) - 1)] = True
        self._longest = max((length for of_prefix in self._by_prefix.values() for length in of_prefix), default=0)
        self._hash_prefixes, self._hash_bytes = hash_prefixes, hash_bytes

    def find(self, block: bytes) -> Iterator[Fingerprint]:
        """Yield each fingerprint that the block holds, as often as it does."""
        for position, prefix in self._iterate_candidates(block):
            for length, by_mac in self._by_prefix[prefix].items():  # all PNG files have one prefix: each is hashed once
                data = block[position : position + length]
                if len(data) == length and not _repeats_too_much(data):
                    yield from by_mac.get(self._hash_bytes(data), ())

    def _iterate_candidates(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield the positions whose next PREFIX_BYTES have the prefix of a fingerprint, with that prefix.

        Positions where one byte only repeats are left out: in a file of SQLite, most of them have zeros.
        """
        if not len(self._prefixes):
            return
        changes: NDArray[np.int64] | None = None
        for offset in range(PREFIX_BYTES):
            count = (len(block) - offset) // PREFIX_BYTES
            if count <= 0:
                return
            hashes = self._hash_prefixes(np.frombuffer(block, "<u8", count, offset))
            near = np.flatnonzero(self._may_be[hashes & np.uint64((1 << TABLE_BITS) - 1)])
            near = near[np.isin(hashes[near], self._prefixes)]
            if len(near):
                changes = _list_changes(block) if changes is None else changes
                positions = offset + PREFIX_BYTES * near
                repeats = changes[np.searchsorted(changes, positions, side="right")] - positions
                for index in near[repeats < self._longest].tolist():
                    yield offset + PREFIX_BYTES * index, int(hashes[index])


def _list_changes(block: bytes) -> NDArray[np.int64]:
    """Return the rising positions whose byte differs from the one before, and the end of the block."""
    values = np.frombuffer(block, np.uint8)
    return np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, len(values))
