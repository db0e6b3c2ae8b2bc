"""Read forms that have photos and a little text, within limits of what they hold in memory.

Long files are temporary files. Text is decoded as UTF-8, or Latin-1 if it is not: no other decoder may be chosen by
the client, since some take quadratic time or fail in ways of their own.
"""

import sys
from asyncio import sleep
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from math import inf

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from app.db.field_types import MAX_METADATA_BYTES
from app.errors import Invalid

MAX_FILES = 2
MAX_FIELD_BYTES = 3 * MAX_METADATA_BYTES
"""JSON may write a character that has two bytes in UTF-8 in six."""
MAX_CHARACTER_BYTES = 4
"""Of each character of a text that has one beyond the first 65,536 of Unicode."""
MAX_FILE_BYTES_IN_MEMORY = 65_536
SLICE_BYTES = 16_384
"""So many bytes are parsed in one turn of the event loop."""
MAX_SHOWN_NAME = 64
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1"})


def is_form(content_type: str) -> bool:
    return bool(parse_options_header(content_type)[0] == b"multipart/form-data")


def check_charset(content_type: str) -> None:
    """Raises Invalid if the text of a form is said to be in another encoding than those that are read."""
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in CHARSETS:
        raise Invalid(f"the charset {charset[:MAX_SHOWN_NAME]!r} of the form is not supported; send its text as UTF-8")


@asynccontextmanager
async def open_form(
    headers: Headers, blocks: AsyncIterator[bytes], max_fields: int, hold: Callable[[int], None]
) -> AsyncIterator[FormData]:
    """Read a form as it arrives. Its files are closed at the end of the block.

    headers: `check_charset` has accepted their content type
    hold: is called with the bytes of memory that its text takes, and may raise
    Raises Invalid, which names the limit that the form exceeds; HTTPException if it is no form.
    """
    try:
        async with aclosing(_slice_blocks(blocks)) as slices:
            form = await _PhotoFormParser(headers, slices, max_fields, hold).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    try:
        yield form
    finally:
        await form.close()


async def yield_body(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _slice_blocks(blocks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield slices between which other requests go on: half a boundary, many times, takes 0.5 s for each MiB."""
    async for block in blocks:
        for start in range(0, len(block), SLICE_BYTES):
            yield block[start : start + SLICE_BYTES]
            await sleep(0)


class _PhotoFormParser(MultiPartParser):
    """Starlette's parser with limits that are refused as such, and which counts what text takes."""

    spool_max_size = MAX_FILE_BYTES_IN_MEMORY

    def __init__(
        self, headers: Headers, blocks: AsyncGenerator[bytes], max_fields: int, hold: Callable[[int], None]
    ) -> None:
        super().__init__(headers, blocks, max_files=inf, max_fields=inf, max_part_size=sys.maxsize)
        self._max_parts = {"files": MAX_FILES, "fields": max_fields}
        self._counts: Counter[str] = Counter()
        self._hold = hold

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        kind = "fields" if self._current_part.file is None else "files"
        self._counts[kind] += 1
        if self._counts[kind] > self._max_parts[kind]:
            raise Invalid(f"the form has too many {kind}: this request takes {self._max_parts[kind]} at most")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        super().on_part_data(data, start, end)
        part = self._current_part
        if part.file is None:
            if len(part.data) > MAX_FIELD_BYTES:
                name = part.field_name[:MAX_SHOWN_NAME]
                raise Invalid(f"the field {name!r} of the form has more than {MAX_FIELD_BYTES:,} bytes")
            self._hold(MAX_CHARACTER_BYTES * (end - start))
