"""An upload is on the disk as it was sent, whatever the sizes of its parts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.deps.uploads.upload_files import WRITE_BYTES, write_upload
from app.errors import Invalid


@pytest.mark.parametrize("sizes", [[1], [WRITE_BYTES], [WRITE_BYTES - 1, 1, 5], [3, WRITE_BYTES + 1, 2 * WRITE_BYTES]])
def test_a_file_is_what_was_sent(tmp_path: Path, sizes: list[int]) -> None:
    sent = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    asyncio.run(write_upload(tmp_path / "upload", iterate(sent)))
    assert (tmp_path / "upload").read_bytes() == b"".join(sent)


def test_an_empty_body_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="the body is empty"):
        asyncio.run(write_upload(tmp_path / "upload", iterate([b""])))


async def iterate(blocks: list[bytes]) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
