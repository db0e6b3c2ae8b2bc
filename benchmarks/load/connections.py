"""A client that costs as little processor time as it can: HTTP/1.1 over sockets that stay open."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

MAX_ANSWER_BYTES = 2**22
MAX_ANSWER_SECONDS = 60.0


class Answer(NamedTuple):
    """An answer; status 0: none came."""

    status: int
    headers: dict[str, str]
    body: bytes


NO_ANSWER = Answer(0, {}, b"")


@dataclass(frozen=True)
class Address:
    """Where a service listens, and the key that requests send."""

    host: str
    port: int
    key: str

    def format_request(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        """Return the bytes of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", f"x-api-key: {self.key}"]
        if body:
            lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class ConnectionPool:
    """Connections to one service. A request takes an idle one, or opens one if there is none."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._closing = set[asyncio.Task[None]]()

    async def send(self, request: bytes) -> Answer:
        """Send a request and read its answer. A connection that the service has closed meanwhile is replaced once."""
        while self._idle:
            streams = self._idle.pop()
            if streams[0].at_eof():
                self._close_later(streams[1])
                continue
            answer = await self._exchange(*streams, request)
            if answer is not NO_ANSWER:
                return answer
            break
        try:
            streams = await asyncio.open_connection(self.address.host, self.address.port, limit=MAX_ANSWER_BYTES)
        except OSError:
            return NO_ANSWER
        return await self._exchange(*streams, request)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Answer:
        try:
            writer.write(request)
            async with asyncio.timeout(MAX_ANSWER_SECONDS):
                answer = await _read_answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            self._close_later(writer)
            return NO_ANSWER
        if answer.headers.get("connection") == "close":
            self._close_later(writer)
        else:
            self._idle.append((reader, writer))
        return answer

    def _close_later(self, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_close(writer))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections, and wait until they are."""
        await asyncio.gather(*self._closing, *(_close(writer) for _, writer in self._idle))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(first.split(" ")[1]), headers, body)
