"""Write uploads to the disk as they arrive, so that they are never held in memory.

Whatever touches the disk runs in a thread: while a worker syncs the file system, even creating or removing a file may
take a second, in which the event loop would answer nobody.
"""

import os
from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from anyio import CancelScope
from anyio.to_thread import run_sync

from app.errors import Busy, Invalid, OutcomeUnknown
from app.storage.blob_store import make_disk_error
from app.storage.free_space import MIN_FREE_BYTES, format_size, has_room

WRITE_BYTES = 2**20


class UploadWriter:
    """Writes a file a megabyte at a time, as long as the disk has room for it and what the service needs."""

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        self._file, self._folder, self._buffered = file, folder, bytearray()

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises Busy if they would leave the service too little room."""
        self._buffered += data
        if len(self._buffered) >= WRITE_BYTES:
            await run_sync(self._write_buffered)

    def _write_buffered(self) -> None:
        if not has_room(self._folder, len(self._buffered)):
            raise Busy(
                f"the upload would leave less than {format_size(MIN_FREE_BYTES)} free on the disk of the service; "
                "nothing of this request was stored. An operator can free some space"
            )
        self._file.write(self._buffered)
        self._buffered.clear()

    async def finish(self) -> int:
        """Write the rest, sync the file, and return its size in bytes. A second call adds nothing."""
        return await run_sync(self._write_rest)

    def _write_rest(self) -> int:
        self._file.write(self._buffered)
        self._buffered.clear()
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


@asynccontextmanager
async def open_upload(path: Path) -> AsyncIterator[UploadWriter]:
    """Open a file to be written; it is synced at the end of the block. Raises Busy (the disk is nearly full)."""
    try:
        with await run_sync(path.open, "wb") as file:
            writer = UploadWriter(file, path.parent)
            yield writer
            await writer.finish()
    except OSError as error:
        raise make_disk_error(error) from error


async def write_upload(path: Path, blocks: AsyncIterator[bytes]) -> None:
    """Write the blocks of an archive to a file; it stays only if all were received.

    Raises Invalid, Busy (the disk is nearly full).
    """
    async with remove_unless_received([path]), open_upload(path) as writer:
        async for block in blocks:
            await writer.write(block)
        if not await writer.finish():
            raise Invalid("the body is empty; send a tar or zip archive", code="InvalidArchive")


@asynccontextmanager
async def remove_unless_received(paths: Iterable[Path]) -> AsyncIterator[None]:
    """Remove uploads if this block, which receives them, does not end well: no import can read them yet."""
    try:
        yield
    except BaseException:  # also if the service ends
        await _remove(paths)
        raise


@asynccontextmanager
async def remove_if_refused(paths: Iterable[Path]) -> AsyncIterator[None]:
    """Remove uploads if the request is refused in this block.

    Where the request may have been carried out although it failed, they stay: an import may read them. A worker
    removes what no import reads.
    """
    try:
        yield
    except (OutcomeUnknown, CancelledError):
        raise
    except BaseException:
        await _remove(paths)
        raise


async def _remove(paths: Iterable[Path]) -> None:
    def unlink_all() -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    with CancelScope(shield=True):
        await run_sync(unlink_all)
