"""The file of an index snapshot: a header of one JSON line, then a body. It is parsed only after its hash matches."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ml.errors import Corrupt, LikenessError
from ml.files import atomic_write, parse_json

Writer = Callable[[bytes], None]


def write_snapshot(path: Path, header: dict[str, Any], write_body: Callable[[Writer], None]) -> str:
    """Write header and body beside `path`, move the file there, and return its SHA-256 in hex."""
    digest = hashlib.sha256()
    with atomic_write(path) as file:

        def write(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        write(json.dumps(header).encode() + b"\n")
        write_body(write)
    return digest.hexdigest()


@contextmanager
def open_snapshot(path: Path, digest: str) -> Iterator[tuple[dict[str, Any], BinaryIO]]:
    """Open a snapshot: its header, and the file at the start of its body.

    Raises Corrupt if the file is missing, truncated or altered, or if its body cannot be read.
    """
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Corrupt(f"the index in {path.name} is not what was saved; build it again from the rows")
            file.seek(0)
            yield parse_json(file.readline()), file
    except LikenessError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise Corrupt(f"the index in {path.name} cannot be read: {error}; build it again from the rows") from error
