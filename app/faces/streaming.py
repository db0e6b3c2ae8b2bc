"""An archive on its way from the wire to the disk: the one body that is never held in memory."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, BinaryIO

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.db.field_types import CollectionName
from app.db.lookups import get_collection
from app.db.session import reading
from app.db.tables import new_id
from app.deps import ResourcesDep
from app.errors import Invalid, TooLarge
from app.faces.schemas import DirectoryIn
from app.resources import Resources
from app.storage.blob_store import disk_error

STEP = 2**20
LONGEST_JSON = 65_536


async def received(request: Request, collection: CollectionName, resources: ResourcesDep) -> AsyncIterator[Path]:
    """The uploaded archive, synced, or the folder that the body names. What no import takes is removed again.

    Raises NotFound before anything is read; Invalid, TooLarge.
    """
    await run_sync(_known, resources, collection)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/json":
        yield await _directory(request)
        return
    path = resources.uploads / new_id()
    blocks: AsyncIterator[bytes] = request.stream()
    if kind == b"multipart/form-data":
        blocks = _file_part(blocks, options.get(b"boundary", b""))
    try:
        await _keep(path, blocks)
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


ReceivedDep = Annotated[Path, Depends(received, scope="function")]


def _known(resources: Resources, collection: str) -> None:
    with reading(resources.database) as session:
        get_collection(session, collection)


async def _directory(request: Request) -> Path:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > LONGEST_JSON:
            raise TooLarge(f"as JSON the body may have {LONGEST_JSON:,} bytes; send an archive as tar or zip")
    try:
        return Path(DirectoryIn.model_validate_json(body).directory)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}") from error


async def _keep(path: Path, blocks: AsyncIterator[bytes]) -> None:
    """Written a megabyte at a time, by a thread, so that other requests go on."""
    waiting = bytearray()
    try:
        with path.open("wb") as file:
            async for block in blocks:
                waiting += block
                if len(waiting) >= STEP:
                    await run_sync(file.write, bytes(waiting))
                    waiting.clear()
            await run_sync(_finish, file, bytes(waiting))
    except OSError as error:
        raise disk_error(error) from error
    if not path.stat().st_size:
        raise Invalid("the body is empty; send a tar or zip archive", code="InvalidArchive")


def _finish(file: BinaryIO, rest: bytes) -> None:
    file.write(rest)
    file.flush()
    os.fsync(file.fileno())


async def _file_part(blocks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """The bytes of the one part named `file`. Raises Invalid."""
    part = _Part()
    try:
        parser = MultipartParser(boundary, part.callbacks())  # type: ignore[arg-type]
        async for block in blocks:
            parser.write(block)
            yield part.taken()
    except FormParserError as error:
        raise Invalid(f"the body is not whole multipart/form-data: {error}", code="InvalidRequest") from error
    if not part.seen:
        raise Invalid("the form has no part named `file`", code="InvalidRequest")
    if not part.ended:
        raise Invalid("the form ends before its last boundary: the upload was cut off", code="InvalidRequest")


class _Part:
    """Collects what the parser reads: the headers of the part, its bytes, and the end of the form."""

    def __init__(self) -> None:
        self.seen = self.ended = False
        self._name = self._value = b""
        self._blocks: list[bytes] = []

    def callbacks(self) -> dict[str, object]:
        return {
            "on_header_field": self._on_name,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }

    def taken(self) -> bytes:
        data = b"".join(self._blocks)
        self._blocks.clear()
        return data

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        name, value = self._name.lower(), self._value
        self._name = self._value = b""
        if name != b"content-disposition":
            return
        part = parse_options_header(value)[1].get(b"name", b"").decode("latin-1")
        if part != "file" or self.seen:
            raise Invalid(f"one part named `file` is taken, not {part!r}; role and aligned go into the query")
        self.seen = True

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._blocks.append(data[start:end])

    def _on_end(self) -> None:
        self.ended = True
