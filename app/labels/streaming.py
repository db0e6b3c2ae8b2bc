"""Receive labels in bulk before their request has a thread and a transaction: slow clients would take all threads."""

from typing import Annotated

from fastapi import Depends, Request
from python_multipart.multipart import parse_options_header

from app.deps.uploads.form_parts import iterate_form_parts

EXPECTED = "the form must have one part named `file`"


async def receive_labels(request: Request) -> bytes:
    """Return the raw body, or the file of a form. AuthMiddleware has limited its length. Raises Invalid."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        return await request.body()
    data = bytearray()
    async for _, block in iterate_form_parts(request.stream(), options.get(b"boundary", b""), ["file"], EXPECTED):
        data += block
    return bytes(data)


ReceivedDep = Annotated[bytes, Depends(receive_labels)]
