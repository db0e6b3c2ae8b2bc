"""Stream uploaded vectors, and the table that may come with them, to the disk."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from python_multipart.multipart import parse_options_header

from app.db.field_types import CollectionName
from app.db.lookups import get_collection
from app.db.session import reading
from app.deps import ResourcesDep
from app.deps.uploads.form_parts import iterate_form_parts
from app.deps.uploads.upload_files import UploadWriter, open_upload, remove_if_refused, remove_unless_received
from app.errors import Conflict
from app.galleries.external_descriptors import get_external
from app.resources import Resources
from app.storage.upload_names import name_upload
from ml.descriptors.external import External

PARTS = ("vectors", "table")
EXPECTED = "the form must have a part named `vectors`, and may have one named `table`"


class ReceivedVectors(NamedTuple):
    """What a request wants to have imported.

    vectors, table: paths of the uploads, which are synced; the table is None if there is none
    external: what the vectors must be; collection_created_at: of the collection, when the request came
    """

    vectors: Path
    table: Path | None
    external: External
    collection_created_at: float


async def receive_vectors(
    request: Request, collection: CollectionName, resources: ResourcesDep
) -> AsyncIterator[ReceivedVectors]:
    """Yield what is to be imported: the parts of a form, or a body that is the file of vectors itself.

    If the request is refused, the uploads are deleted. Raises NotFound and Conflict before the body is read, Invalid.
    """
    external, created_at = await run_sync(_read_collection, resources, collection)
    name = name_upload(request.state.audit_spool.process)
    paths = {"vectors": resources.uploads / name, "table": resources.uploads / f"{name}.table"}
    async with remove_if_refused([*paths.values(), *(paths["table"].with_suffix(end) for end in (".csv", ".jsonl"))]):
        names = await _write_parts(request, paths)
        yield ReceivedVectors(paths["vectors"], paths["table"] if "table" in names else None, external, created_at)


ReceivedDep = Annotated[ReceivedVectors, Depends(receive_vectors, scope="function")]


def _read_collection(resources: Resources, collection: str) -> tuple[External, float]:
    with reading(resources.database) as session:
        row = get_collection(session, collection)
        external = get_external(session, row)
    if external is None:
        raise Conflict(
            f"the collection {collection!r} holds faces of photos; vectors need a collection that was made with a "
            '`descriptor`: PUT /v1/collections/NAME {"descriptor": {"external": {"dim": 512, "metric": "cosine"}}}',
            code="ExternalDescriptor",
        )
    return external, row.created_at


async def _write_parts(request: Request, paths: dict[str, Path]) -> set[str]:
    """Write the parts to their files as they arrive, and return the names of those that came.

    The files stay only if all parts were received.
    """
    writers: dict[str, UploadWriter] = {}
    async with remove_unless_received(paths.values()), AsyncExitStack() as stack:
        async for part, data in _iterate_parts(request):
            if part not in writers:
                writers[part] = await stack.enter_async_context(open_upload(paths[part]))
            await writers[part].write(data)
    return set(writers)


async def _iterate_parts(request: Request) -> AsyncIterator[tuple[str, bytes]]:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    blocks: AsyncIterator[bytes] = request.stream()
    if kind != b"multipart/form-data":
        yield PARTS[0], b""
        async for block in blocks:
            yield PARTS[0], block
        return
    async for part in iterate_form_parts(blocks, options.get(b"boundary", b""), PARTS, EXPECTED):
        yield part
