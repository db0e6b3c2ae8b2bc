"""Hostile `.npy` files are refused by a sentence, and nothing of them is evaluated or unpickled."""

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.enrolment.vectors.npy_file import MAX_HEADER_BYTES, open_npy
from app.errors import Invalid
from tests.npy import to_npy

CASES = int(os.environ.get("FUZZ_CASES", "400"))
GOOD = to_npy(np.arange(12, dtype=np.float32).reshape(3, 4))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def with_header(header: bytes, data: bytes = b"\0" * 48, version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + data


def make_header(descr: str = "'<f4'", order: str = "False", shape: str = "(3, 4)", more: str = "") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {more}}}\n".encode()


HEADERS = {
    "code": b"__import__('os').system('true')\n",
    "code in the shape": make_header(shape="(3, __import__('os').getpid())"),
    "an arithmetic shape": make_header(shape="(3, 2*2)"),
    "a power": make_header(shape="(9**9**9, 4)"),
    "deep brackets": make_header(shape="(" * 1500 + ")" * 1500),
    "deep signs": make_header(shape="-" * 3000 + "1"),
    "a negative shape": make_header(shape="(-3, 4)"),
    "a boolean shape": make_header(shape="(True, 4)"),
    "a shape beyond 64 bits": make_header(shape="(99999999999999999999999999, 4)"),
    "a huge shape": make_header(shape="(999999999999999, 4)"),
    "no rows": make_header(shape="(0, 4)"),
    "no numbers": make_header(shape="(3, 0)"),
    "one dimension": make_header(shape="(12,)"),
    "no dimension": make_header(shape="()"),
    "three dimensions": make_header(shape="(3, 2, 2)"),
    "an extra field": make_header(more="'x': 1, "),
    "a field twice": make_header(more="'shape': (3, 4), "),
    "a missing field": b"{'descr': '<f4', 'shape': (3, 4), }\n",
    "objects": make_header("'|O'"),
    "doubles": make_header("'<f8'"),
    "integers": make_header("'<i4'"),
    "big-endian": make_header("'>f4'"),
    "a structure": make_header("[('x', '<f4')]"),
    "Fortran order": make_header(order="True"),
    "no braces": b"'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)\n",
    "text after it": make_header() + b"import os",
    "not ASCII": make_header("'<f4\u00e9'"),
    "null bytes": make_header("'<f4\\0'").replace(b"\\0", b"\0"),
    "nothing": b"",
    "blanks": b" " * 4000,
    "commas": b"{" + b"'shape': ( , , , ), " * 150 + b"}",
}


def refuse(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "vectors"
    path.write_bytes(data)
    with pytest.raises(Invalid, match=r"the vectors are no \.npy file") as refused:
        open_npy(path, 1_000_000)
    assert refused.value.code == "InvalidVectors"
    return refused.value.detail


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_hostile_headers_are_refused(name: str, version: bytes, tmp_path: Path) -> None:
    refuse(tmp_path, with_header(HEADERS[name], version=version))


@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_the_headers_are_refused_for_what_is_wrong_with_them(version: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(with_header(make_header(), version=version))
    assert (open_npy(path, 10).count, open_npy(path, 10).dim) == (3, 4)


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    detail = refuse(tmp_path, to_npy(np.array([[Bomb(mark)]], object)))
    assert "float32" in detail
    assert not mark.exists()
    refuse(tmp_path, pickle.dumps(Bomb(mark)))
    refuse(tmp_path, with_header(make_header(), pickle.dumps([Bomb(mark)] * 3)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (to_npy(np.zeros((3, 4))), "np.save"),
        (to_npy(np.asfortranarray(np.zeros((3, 4), np.float32))), "Fortran"),
        (to_npy(np.zeros(12, np.float32)), "two are needed"),
        (to_npy(np.zeros((3, 70_000), np.float16)), "16,384"),
        (GOOD[:-1], "cut off"),
        (GOOD + b"\0", "cut off or altered"),
        (GOOD[:5], "begin"),
        (GOOD[:9], "header"),
        (b"PK\x03\x04" + GOOD, "begin"),
        (b"", "begin"),
        (with_header(b"{" + b" " * MAX_HEADER_BYTES + b"}"), "header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + GOOD[10:], "header"),
        (b"\x93NUMPY\x09\x00" + GOOD[8:], "version"),
    ],
)
def test_the_refusal_says_what_would_be_right(data: bytes, hint: str, tmp_path: Path) -> None:
    assert hint in refuse(tmp_path, data)


def test_more_rows_than_the_limit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(GOOD)
    with pytest.raises(Invalid, match="several files"):
        open_npy(path, 2)


def test_altered_bytes_are_refused_or_read_as_they_stand(tmp_path: Path) -> None:
    """Whatever a header says, the rows that are read lie within the file."""
    draw, path = random.Random(0), tmp_path / "vectors"
    read = 0
    for _ in range(CASES):
        data = bytearray(GOOD)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data) - 48)] = draw.choice([draw.randrange(256), *b"0123456789(),'{} "])
        path.write_bytes(bytes(data))
        try:
            opened = open_npy(path, 1_000)
        except Invalid:
            continue
        rows = np.asarray(opened.read_rows())
        assert rows.shape == (opened.count, opened.dim)
        assert opened.offset + rows.nbytes == len(data)
        read += 1
    assert read, "some alterations do no harm, such as blanks"
