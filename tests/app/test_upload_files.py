"""An upload is on the disk as it was sent, whatever the sizes of its parts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.deps.uploads.upload_files import WRITE_BYTES, write_upload
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
    assert (tmp_path / "upload").stat().st_size <= 2 * WRITE_BYTES


async def iterate(blocks: list[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
