"""Any bytes that pretend to be a manifest, labels or the header of a tar are parsed or refused with a sentence.

`FUZZ_CASES=20000 pytest tests/fuzz/test_parsers.py` tries more.
"""

import csv
import io
import json
import os
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from app.enrolment.archives.manifest import ArchiveManifest
from app.enrolment.archives.manifest_rows import parse_rows
from app.enrolment.archives.tar_headers import BLOCK_BYTES, parse_header, parse_pax_records
from app.errors import Invalid
from app.labels.bulk_labels import COLUMNS, parse_labels
from tests.fuzz.archive_bytes import mend_checksum
from tests.fuzz.hostile_manifests import VALUES, HostileManifests

Parsed = TypeVar("Parsed")
CASES = int(os.environ.get("FUZZ_CASES", "200"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
LETTERS = [*"aü,;'\"\\\n\r\t\0\ufeff{}[]:01-eE/ "]
PAX_PIECES = (b"1", b"2", b"10", b" ", b"=", b"\n", b"path", b"\0", b"10 path=x\n", b"\xff")


def attempt(parse: Callable[[], Parsed]) -> Parsed | Invalid:
    """Return what was parsed, or the refusal. Any other error is raised."""
    try:
        return parse()
    except Invalid as refusal:
        return refusal


def read_manifest(name: str, data: bytes) -> ArchiveManifest:
    return ArchiveManifest.load(parse_rows(io.BytesIO(data), name), name)


def draw_text(rng: np.random.Generator) -> str:
    return "".join(rng.choice(LETTERS, int(rng.integers(12)))) if rng.random() < 0.5 else str(rng.choice(VALUES))


def draw_labels(rng: np.random.Generator) -> bytes:
    """Draw a file of labels: noise, CSV with or without the right header, or lines of JSON of any values."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.bytes(int(rng.integers(200)))
    header = list(COLUMNS) if rng.random() < 0.7 else [draw_text(rng) for _ in range(4)]
    rows = [[draw_text(rng) for _ in range(int(rng.integers(8)))] for _ in range(int(rng.integers(6)))]
    if kind == 1:
        return "\n".join(map(",".join, [header, *rows])).encode("utf-8", "surrogatepass")
    if kind == 2:
        file = io.StringIO(newline="")
        csv.writer(file).writerows([header, *rows])
        return file.getvalue().encode("utf-8", "surrogatepass")
    values = ("a", "b", True, None, 1e400, 10**30, [], {"x": []}, "\ud800", "\0")
    lines = [json.dumps({n: values[rng.integers(len(values))] for n in header}) for _ in rows]
    return "\n".join(lines).encode()


def test_any_manifest_is_read_or_refused() -> None:
    rng = np.random.default_rng(SEED)
    manifests, outcomes = HostileManifests(rng, ("p0/0.png", "p1/1.png")), set()
    for _ in range(max(40, CASES // 10)):  # some have 100,000 rows
        name, data = manifests.draw()
        manifest = attempt(lambda name=name, data=data: read_manifest(name, data))  # type: ignore[misc]
        outcomes.add(type(manifest))
        if isinstance(manifest, Invalid):
            assert manifest.code == "InvalidArchive"
            assert manifest.detail.startswith("the archive is refused: line ")
        else:
            manifest.close()
    assert outcomes == {Invalid, ArchiveManifest}


def test_any_file_of_labels_is_read_or_refused() -> None:
    rng, counts = np.random.default_rng(SEED), np.zeros(3, int)
    drawn = [draw_labels(rng) for _ in range(CASES)]
    for data in [*drawn, b'{"face_a": ' + b"[" * 100_000, b"face_a,face_b,same\n" + b"9" * 200_000]:
        labels = attempt(lambda data=data: parse_labels(data))  # type: ignore[misc]
        if isinstance(labels, Invalid):
            assert labels.detail
            counts[0] += 1
            continue
        good, wrong = labels
        indexes = [index for index, _ in good] + [refused.index for refused in wrong.listed]
        assert sorted(indexes) == list(range(len(indexes)))
        assert all(refused.detail for refused in wrong.listed)
        counts[1:] += len(good), wrong.count
    assert counts[0] > 0
    assert counts[2] > 0


def test_any_pax_header_is_read_or_refused() -> None:
    rng, outcomes = np.random.default_rng(SEED), set()
    for _ in range(CASES):
        data = b"".join(rng.choice(PAX_PIECES, int(rng.integers(1, 9)))) if rng.random() < 0.8 else rng.bytes(60)
        records = attempt(lambda data=data: parse_pax_records(data, 0))  # type: ignore[misc]
        outcomes.add(type(records))
        if isinstance(records, Invalid):
            assert "damaged" in records.detail
        else:
            assert all(value in data for value in records.values())
    assert outcomes == {Invalid, dict}


def test_any_tar_header_is_read_or_refused() -> None:
    rng, kinds = np.random.default_rng(SEED), set()
    for _ in range(CASES):
        block = bytearray(rng.bytes(BLOCK_BYTES) if rng.random() < 0.5 else bytes(BLOCK_BYTES))
        block[124:136] = rng.choice(np.frombuffer(b"01234567 \0-9\x80\xff", np.uint8), 12).tobytes()
        block[156] = int(rng.integers(256))
        if rng.random() < 0.8:
            mend_checksum(block)
        header = attempt(lambda block=block: parse_header(bytes(block), 0))  # type: ignore[misc]
        if isinstance(header, Invalid):
            assert header.code == "InvalidArchive"
            kinds.add("refused")
        else:
            assert header.size >= 0
            kinds.add(header.kind)
    assert {"refused", "special"} <= kinds <= {"refused", "file", "folder", "link", "special"}


@pytest.mark.parametrize("name", ["manifest.csv", "manifest.jsonl"])
def test_a_manifest_says_what_was_written(name: str) -> None:
    rng = np.random.default_rng(SEED)
    letters = [*"aüß,;'\"\\ {}[]:漢\U0001f600"]
    rows = [(f"{n}{''.join(rng.choice(letters, 9))}", f"s{''.join(rng.choice(letters[:5], 5))}") for n in range(CASES)]
    if name.endswith(".csv"):
        file = io.StringIO(newline="")
        csv.writer(file).writerows([("file", "subject"), *rows])
        text = file.getvalue()
    else:
        text = "\n".join(json.dumps({"file": file, "subject": subject}) for file, subject in rows)
    manifest = read_manifest(name, text.encode())
    taken = [manifest.take(file) for file, _ in rows]
    assert [(row.file, row.subject) for row in taken if row is not None] == rows
    assert list(manifest.iterate_unused()) == []
    manifest.close()
