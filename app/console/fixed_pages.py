"""Pages that are the same for every client, and cost next to nothing to send again."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from fastapi import Request, Response


@dataclass(frozen=True)
class FixedPage:
    """The bytes of a page and its headers, with an `ETag` of the bytes."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]

    @classmethod
    def make(cls, text: str, media_type: str = "text/html", headers: Mapping[str, str] | None = None) -> Self:
        """Make a page from its text."""
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, media_type, {**(headers or {}), "ETag": tag, "Cache-Control": "no-cache"})

    @classmethod
    def read(cls, path: Path, headers: Mapping[str, str]) -> "FixedPage":
        """Make a page from a file, which is read once."""
        return _read(path, tuple(headers.items()))

    def answer(self, request: Request) -> Response:
        """Return the page, or 304 if the client has it."""
        if self.headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=dict(self.headers))
        return Response(self.body, media_type=self.media_type, headers=dict(self.headers))


@cache
def _read(path: Path, headers: tuple[tuple[str, str], ...]) -> FixedPage:
    return FixedPage.make(path.read_text(), headers=dict(headers))
