"""Stream an uploaded archive to the disk, so that it is never held in memory."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, NamedTuple

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header

from app.db.field_types import CollectionName
from app.db.lookups import get_collection
from app.db.session import reading
from app.deps import ResourcesDep
from app.deps.server.json_limits import check_json
from app.deps.uploads.form_parts import iterate_form_parts
from app.deps.uploads.upload_files import remove_if_refused, write_upload
from app.errors import Invalid, TooLarge
from app.faces.schemas import DirectoryIn
from app.galleries.external_descriptors import check_takes_photos
from app.resources import Resources
from app.storage.upload_names import name_upload

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

    If the request is refused, the upload is deleted.
    Raises NotFound or ml.CannotDescribe before the body is read, Invalid, TooLarge.
    """
    created_at = await run_sync(_read_creation_time, resources, collection)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"application/json":
        yield ReceivedImport(await _read_directory(request), created_at)
        return
    path = resources.uploads / name_upload(request.state.audit_spool.process)
    blocks: AsyncIterator[bytes] = request.stream()
    if kind == b"multipart/form-data":
        blocks = _iterate_file_part(blocks, options.get(b"boundary", b""))
    async with remove_if_refused([path]):
        await write_upload(path, blocks)
        yield ReceivedImport(path, created_at)


ReceivedDep = Annotated[ReceivedImport, Depends(receive_import, scope="function")]


def _read_creation_time(resources: Resources, collection: str) -> float:
    with reading(resources.database) as session:
        row = get_collection(session, collection)
        check_takes_photos(session, row)
        return row.created_at


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


async def _iterate_file_part(blocks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes of the only part, which must be named `file`. Raises Invalid."""
    expected = "the form must have one part named `file`; send role and aligned in the query"
    async for _, data in iterate_form_parts(blocks, boundary, ["file"], expected):
        yield data
