"""A snapshot of an index: one JSON line of facts, then FAISS's own bytes; parsed only once its hash is right."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import faiss

from ml.errors import Corrupt


def write(path: Path, header: dict[str, Any], lists: Any) -> str:
    """Writes beside `path`, then moves it there. Returns the SHA-256 of the file in hex. `lists` None: no cells yet."""
    digest = hashlib.sha256()
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        put(json.dumps(header | {"trained": lists is not None}).encode() + b"\n")
        if lists is not None:
            faiss.write_index(lists, faiss.PyCallbackIOWriter(put))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return digest.hexdigest()


def read(path: Path, digest: str) -> tuple[dict[str, Any], Any]:
    """What `write` was given. Raises Corrupt: missing, truncated, altered, or of another FAISS."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Corrupt(f"the index in {path.name} is not what was saved; build it again from the rows")
            file.seek(0)
            header: dict[str, Any] = json.loads(file.readline())
            lists = faiss.read_index(faiss.PyCallbackIOReader(file.read)) if header["trained"] else None
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise Corrupt(f"the index in {path.name} cannot be read: {error}; build it again from the rows") from error
    return header, lists
