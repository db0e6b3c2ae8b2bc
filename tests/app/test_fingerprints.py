"""Fingerprints recognise bytes at any position, and say nothing without the key."""

import random
import time
from pathlib import Path

import pytest

from app.galleries.erasure_scan import BLOCK_BYTES, read_blocks
from app.storage import fingerprints
from app.storage.fingerprints import MAX_BYTES, PREFIX_BYTES, Fingerprint, Fingerprinter
from app.storage.installation_key import InstallationKey, read_installation_key

KEY = InstallationKey(bytes(range(32)))


def noise(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def make(data: bytes) -> Fingerprint:
    fingerprint = Fingerprinter(KEY).make("text", data)
    assert fingerprint is not None
    return fingerprint


@pytest.mark.parametrize("length", [PREFIX_BYTES, 9, 64, MAX_BYTES, MAX_BYTES + 50])
def test_bytes_are_found_at_every_position(length: int) -> None:
    data = noise(length, seed=1)
    finder = Fingerprinter(KEY).open_finder([make(data)])
    for position in range(17):
        block = noise(position, seed=2) + data + noise(30, seed=3)
        assert [match.length for match in finder.find(block)] == [min(length, MAX_BYTES)]
    assert list(finder.find(data[: min(length, MAX_BYTES) - 1])) == []


def test_each_of_many_fingerprints_is_found_as_often_as_it_is_there() -> None:
    values = [noise(40, seed=n) for n in range(3_000)]
    finder = Fingerprinter(KEY).open_finder(map(make, values))
    block = b"-".join([*values, values[7]])
    matches = [match.mac for match in finder.find(block)]
    assert len(matches) == 3_001
    assert matches.count(make(values[7]).mac) == 2
    assert list(finder.find(noise(200_000, seed=9_999))) == []


def test_fingerprints_with_the_same_first_bytes_are_told_apart() -> None:
    """Every PNG file begins with the same eight bytes."""
    values = [b"\x89PNG\r\n\x1a\n" + noise(length, seed=length) for length in (20, 20 + 1, 30, 40)]
    values.append(values[2][:-1] + b"?")
    finder = Fingerprinter(KEY).open_finder([*map(make, values[1:]), make(values[1])])
    matches = [match.mac for match in finder.find(b"-".join(values))]
    assert sorted(matches) == sorted(make(value).mac for value in [*values[1:], values[1]])


def test_zeros_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector may begin with zeros, and a file of SQLite has a million positions with zeros."""
    data, hashed = bytes(8) + noise(40), list[bytes]()
    fingerprint, hash_text = make(data), InstallationKey.hash_text

    def count(key: InstallationKey, purpose: str, text: str) -> str:
        hashed.append(bytes.fromhex(text))
        return hash_text(key, purpose, text)

    monkeypatch.setattr(InstallationKey, "hash_text", count)
    block = bytes(10_000) + data + bytes(10_000)
    assert list(Fingerprinter(KEY).open_finder([fingerprint]).find(block)) == [fingerprint]
    assert data in hashed
    assert len(hashed) <= 48


def test_zeros_are_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, judged = bytes(8) + noise(40), list[bytes]()
    fingerprint, repeats_too_much = make(data), fingerprints._repeats_too_much

    def count(data: bytes) -> bool:
        judged.append(data)
        return repeats_too_much(data)

    monkeypatch.setattr(fingerprints, "_repeats_too_much", count)
    block = bytes(10_000) + data + bytes(10_000)
    assert list(Fingerprinter(KEY).open_finder([fingerprint]).find(block)) == [fingerprint]
    assert len(judged) <= 2 * len(data)


def test_what_would_be_found_everywhere_has_no_fingerprint() -> None:
    fingerprinter = Fingerprinter(KEY)
    assert fingerprinter.make("text", b"ada") is None
    assert fingerprinter.make("photo", bytes(256)) is None
    assert fingerprinter.make_all("text", [b"ada", b"ada lovelace"]) == [make(b"ada lovelace")]
    assert list(fingerprinter.open_finder([]).find(noise(100))) == []


def test_another_key_makes_another_fingerprint() -> None:
    other = Fingerprinter(InstallationKey(bytes(32))).make("text", b"ada lovelace")
    assert other is not None
    assert (other.prefix, other.mac) != (make(b"ada lovelace").prefix, make(b"ada lovelace").mac)
    assert b"ada".hex() not in make(b"ada lovelace").mac


def test_bytes_across_two_blocks_of_a_file_are_found(tmp_path: Path) -> None:
    data, path = noise(MAX_BYTES, seed=1), tmp_path / "large"
    finder = Fingerprinter(KEY).open_finder([make(data)])
    for start in (BLOCK_BYTES - MAX_BYTES // 2, BLOCK_BYTES - 1, 2 * BLOCK_BYTES - 5):
        path.write_bytes(bytes(start) + data + bytes(1_000))
        assert sum(1 for block in read_blocks(path, MAX_BYTES - 1) for _ in finder.find(block)) == 1
    path.write_bytes(b"")
    assert list(read_blocks(path, 10)) == []
    assert list(read_blocks(tmp_path / "none", 10)) == []


def test_a_scan_is_not_slow() -> None:
    finder = Fingerprinter(KEY).open_finder(make(noise(64, seed=n)) for n in range(1_000))
    block = noise(8 * 2**20, seed=5_000)
    started = time.process_time()
    assert list(finder.find(block)) == []
    assert time.process_time() - started < 4, "2 MiB in a second, a tenth of what was measured"


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    first, second = read_installation_key(tmp_path), read_installation_key(tmp_path)
    assert first.hash_text("subject", "staff", "ada") == second.hash_text("subject", "staff", "ada")
    assert first.hash_text("subject", "staff", "ada") != first.hash_text("photo", "staff", "ada")
    [path] = tmp_path.iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("installation.key", 0o600)
