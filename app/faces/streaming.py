"""Stream an uploaded archive to the disk, so that it is never held in memory."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

from anyio import CancelScope
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
from app.deps.server.json_limits import check_json
from app.errors import Invalid, TooLarge
from app.faces.schemas import DirectoryIn
from app.resources import Resources
from app.storage.blob_store import make_disk_error

WRITE_BYTES = 2**20
MAX_JSON_BYTES = 65_536


class ReceivedImport(NamedTuple):
    """What a request wants to have imported.

    path: of the uploaded archive, which is synced, or of the folder that the body names
    collection_created_at: of the collection, when the request came
    """

    path: Path
    collection_created_at: float


async def receive_import(
    request: Request, collection: CollectionName, resources: ResourcesDep
) -> AsyncIterator[ReceivedImport]:
    """Yield what is to be imported.

    If the request fails, the upload is deleted. Raises NotFound before the body is read, Invalid, TooLarge.
    """
    created_at = await run_sync(_read_creation_time, resources, collection)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/json":
        yield ReceivedImport(await _read_directory(request), created_at)
        return
    path = resources.uploads / new_id()
    blocks: AsyncIterator[bytes] = request.stream()
    if kind == b"multipart/form-data":
        blocks = _iterate_file_part(blocks, options.get(b"boundary", b""))
    try:
        await _write_upload(path, blocks)
        yield ReceivedImport(path, created_at)
    except BaseException:
        with CancelScope(shield=True):
            await run_sync(_remove_upload, path)
        raise


ReceivedDep = Annotated[ReceivedImport, Depends(receive_import, scope="function")]


def _read_creation_time(resources: Resources, collection: str) -> float:
    with reading(resources.database) as session:
        return get_collection(session, collection).created_at


async def _read_directory(request: Request) -> Path:
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > MAX_JSON_BYTES:
            raise TooLarge(f"a JSON body may have {MAX_JSON_BYTES:,} bytes; send an archive as tar or zip")
    check_json(body)
    try:
        return Path(DirectoryIn.model_validate_json(body).directory)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}") from error


async def _write_upload(path: Path, blocks: AsyncIterator[bytes]) -> None:
    """Write the blocks to the file, a megabyte at a time.

    Whatever touches the disk runs in a thread: while a worker syncs the file system, even creating or removing a file
    may take a second, in which the event loop would answer nobody. Raises Invalid, Busy (the disk is full).
    """
    buffered = bytearray()
    try:
        with await run_sync(path.open, "wb") as file:
            async for block in blocks:
                buffered += block
                if len(buffered) >= WRITE_BYTES:
                    await run_sync(file.write, bytes(buffered))
                    buffered.clear()
            await run_sync(_write_rest, file, bytes(buffered))
    except OSError as error:
        raise make_disk_error(error) from error


def _write_rest(file: BinaryIO, rest: bytes) -> None:
    file.write(rest)
    if not file.tell():
        raise Invalid("the body is empty; send a tar or zip archive", code="InvalidArchive")
    file.flush()
    os.fsync(file.fileno())


def _remove_upload(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _iterate_file_part(blocks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes of the only part, which must be named `file`. Raises Invalid."""
    part = _FilePart()
    try:
        parser = MultipartParser(boundary, part.callbacks())  # type: ignore[arg-type]
        async for block in blocks:
            parser.write(block)
            yield part.take_data()
    except FormParserError as error:
        raise Invalid(f"the body is not complete multipart/form-data: {error}", code="InvalidRequest") from error
    if not part.is_found:
        raise Invalid("the form has no part named `file`", code="InvalidRequest")
    if not part.is_complete:
        raise Invalid("the form ends before its last boundary: the upload was cut off", code="InvalidRequest")


class _FilePart:
    """Collects what the parser reports: the headers of the part, its bytes, and the end of the form.

    is_found: the part is named `file`; is_complete: the form has its last boundary
    """

    def __init__(self) -> None:
        self.is_found = self.is_complete = False
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

    def take_data(self) -> bytes:
        """Return the bytes since the last call."""
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
        if part != "file" or self.is_found:
            raise Invalid(f"the form must have one part named `file`, not {part!r}; send role and aligned in the query")
        self.is_found = True

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._blocks.append(data[start:end])

    def _on_end(self) -> None:
        self.is_complete = True
