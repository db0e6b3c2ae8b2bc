"""An upload is on the disk as it was sent, whatever the sizes of its parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.deps.uploads.upload_files import WRITE_BYTES, remove_if_refused, write_upload
from app.embedding_imports.streaming import _write_parts
from app.errors import Busy, Invalid
from app.storage.free_space import MIN_FREE_BYTES


@pytest.mark.parametrize("sizes", [[1], [WRITE_BYTES], [WRITE_BYTES - 1, 1, 5], [3, WRITE_BYTES + 1, 2 * WRITE_BYTES]])
def test_a_file_is_what_was_sent(tmp_path: Path, sizes: list[int]) -> None:
    sent = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    asyncio.run(write_upload(tmp_path / "upload", iterate(sent)))
    assert (tmp_path / "upload").read_bytes() == b"".join(sent)


def test_an_empty_body_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="the body is empty"):
        asyncio.run(write_upload(tmp_path / "upload", iterate([b""])))


def test_an_upload_leaves_the_service_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would keep others from erasing people and from revoking keys."""
    left = [MIN_FREE_BYTES + 2 * WRITE_BYTES]

    def shrink(path: object) -> SimpleNamespace:
        left[0] -= WRITE_BYTES
        return SimpleNamespace(free=left[0] + WRITE_BYTES)

    monkeypatch.setattr("shutil.disk_usage", shrink)
    blocks = [bytes(WRITE_BYTES)] * 3
    with pytest.raises(Busy, match="less than 256 MiB free"):
        asyncio.run(write_upload(tmp_path / "upload", iterate(blocks)))
    assert list(tmp_path.iterdir()) == []


async def receive_archive(paths: list[Path], blocks: AsyncIterator[bytes]) -> None:
    await write_upload(paths[0], blocks)


async def receive_parts(paths: list[Path], blocks: AsyncIterator[bytes]) -> None:
    request: Any = SimpleNamespace(headers={"content-type": "multipart/form-data; boundary=x"}, stream=lambda: blocks)
    await _write_parts(request, dict(zip(("vectors", "table"), paths, strict=True)))


@pytest.mark.parametrize("receive", [receive_archive, receive_parts])
def test_an_upload_that_is_being_received_when_the_service_ends_is_removed(
    tmp_path: Path, receive: Callable[[list[Path], AsyncIterator[bytes]], Awaitable[None]]
) -> None:
    """No import can read it yet."""
    paths = [tmp_path / "upload", tmp_path / "upload.table"]
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n, b"a") for n in (b"vectors", b"table")
    ]

    async def end_service() -> None:
        is_receiving = asyncio.Event()

        async def send() -> AsyncIterator[bytes]:
            for block in (*parts, bytes(2 * WRITE_BYTES)):
                yield block
            is_receiving.set()
            await asyncio.Event().wait()

        async def answer() -> None:
            async with remove_if_refused(paths):
                await receive(paths, send())

        task = asyncio.create_task(answer())
        await is_receiving.wait()
        assert list(tmp_path.iterdir())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(end_service())
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_an_import_may_read_stays_when_the_service_ends(tmp_path: Path) -> None:
    path = tmp_path / "upload"

    async def answer() -> None:
        async with remove_if_refused([path]):
            await write_upload(path, iterate([b"x"]))
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answer())
    assert path.exists()


async def iterate(blocks: list[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
