"""Read vectors from an `.npy` file of a client. The header is parsed by a pattern: nothing of it is evaluated.

Source: the format as numpy.lib.format describes it, versions 1.0 to 3.0.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from app.errors import Invalid
from ml.descriptors.external import MAX_DIM

MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
"""Version of the format -> how many bytes say how long the header is."""
MAX_HEADER_BYTES = 4_096
ENTRY = re.compile(
    r"'(descr|fortran_order|shape)' *: *"
    r"(?:'([^'\\]{1,16})'|(True|False)|\( *(\d{1,15}(?: *, *\d{1,15})*)? *,? *\)) *,? *"
)
DTYPES: dict[str, np.dtype[Any]] = {"<f4": np.dtype("<f4"), "<f2": np.dtype("<f2")}
SAVE = "np.save(file, np.ascontiguousarray(vectors, np.float32))"


@dataclass(frozen=True)
class NpyFile:
    """An array of (count, dim) numbers in a file. offset: of the first number, in bytes"""

    path: Path
    dtype: str
    count: int
    dim: int
    offset: int

    def read_rows(self) -> NDArray[Any]:
        """Map the (count, dim) rows; pages are read from the disk as they are used."""
        return np.memmap(self.path, DTYPES[self.dtype], "r", self.offset, (self.count, self.dim))


def open_npy(path: Path, max_rows: int) -> NpyFile:
    """Check the header and the size of a file. Raises Invalid (InvalidVectors) with what would be right."""
    size = path.stat().st_size
    with path.open("rb") as file:
        entries = _parse_header(_read_header(file))
        offset = file.tell()
    dtype = entries.get("descr", "")
    if dtype not in DTYPES:
        raise refuse(f"its numbers are {dtype!r}; float32 or float16 in little-endian order are needed: {SAVE}")
    if entries.get("fortran_order") != "False":
        raise refuse(f"it is in Fortran order; the rows must follow one another: {SAVE}")
    shape = [int(n) for n in re.findall(r"\d+", entries.get("shape", ""))]
    if len(shape) != 2:
        raise refuse(f"it has {len(shape)} dimensions; two are needed, one row a face")
    count, dim = shape
    if not 1 <= dim <= MAX_DIM:
        raise refuse(f"a vector has {dim:,} numbers; 1 to {MAX_DIM:,} are possible")
    if not 1 <= count <= max_rows:
        raise refuse(f"it has {count:,} vectors; 1 to {max_rows:,} can be imported at once: send several files")
    needed = offset + count * dim * DTYPES[dtype].itemsize
    if size != needed:
        raise refuse(
            f"it has {size:,} bytes, and {count:,} x {dim:,} numbers take {needed:,}: it is cut off or altered"
        )
    return NpyFile(path, dtype, count, dim, offset)


def refuse(detail: str) -> Invalid:
    """Return the error for a file of vectors that cannot be read."""
    return Invalid(f"the vectors are no .npy file that can be imported: {detail}", code="InvalidVectors")


def _read_header(file: BinaryIO) -> str:
    start = file.read(len(MAGIC) + 2)
    if start[: len(MAGIC)] != MAGIC:
        raise refuse(f"it does not begin like one; save the array with {SAVE}")
    length_bytes = LENGTH_BYTES.get(start[len(MAGIC) :])
    if length_bytes is None:
        raise refuse("it has a version that is not known; 1.0, 2.0 and 3.0 are")
    length = int.from_bytes(file.read(length_bytes), "little")
    if not 0 < length <= MAX_HEADER_BYTES:
        raise refuse(f"its header has {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
    header = file.read(length)
    if len(header) != length or not header.isascii():
        raise refuse("its header is cut off or not ASCII")
    return header.decode()


def _parse_header(header: str) -> dict[str, str]:
    """Return the fields of the header as texts. Raises Invalid."""
    text = header.strip()
    entries: dict[str, str] = {}
    position = 1
    while entry := ENTRY.match(text, position):
        name, *values = entry.groups()
        if name in entries:
            raise refuse("its header states something twice")
        entries[name] = next((value for value in values if value is not None), "")
        position = entry.end()
    if text[:1] != "{" or text[position:] != "}":
        raise refuse(f"its header is not that of a plain array of numbers; save the array with {SAVE}")
    return entries
