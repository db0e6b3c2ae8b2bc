"""Measure how long a service takes to answer `/livez` while it is attacked, and a bare server beside it.

The bare server does nothing else, so that its slow answers are those of the machine.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

import httpx

PAUSE_SECONDS = 0.05
MAX_SECONDS = 0.1
BARE_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"status":"ok"}'


class LivezTimes(NamedTuple):
    """Seconds of the answers of a server, in ascending order"""

    seconds: list[float]

    @classmethod
    def of(cls, seconds: list[float]) -> Self:
        return cls(sorted(seconds))

    @property
    def slowest(self) -> float:
        return self.seconds[-1]

    @property
    def slow_share(self) -> float:
        """The share of the answers that took more than MAX_SECONDS."""
        return sum(second > MAX_SECONDS for second in self.seconds) / len(self.seconds)

    def __str__(self) -> str:
        median, late = (self.seconds[int(share * len(self.seconds))] * 1000 for share in (0.5, 0.999))
        figures = f"median {median:.1f} ms, 99.9 % within {late:.0f} ms, slowest {self.slowest * 1000:.0f} ms"
        return f"{len(self.seconds):,} answers, {figures}, {self.slow_share:.2%} over {MAX_SECONDS * 1000:.0f} ms"


@contextmanager
def watch_livez(url: str) -> Iterator[dict[str, LivezTimes]]:
    """Ask the service and a bare server in turn. At the end, the times are under "service" and "bare server"."""
    context = get_context("spawn")
    pipe, other_end = context.Pipe()
    url_pipe, server_end = context.Pipe()
    server = context.Process(target=serve_bare, args=(server_end,), daemon=True)
    server.start()
    watcher = context.Process(target=ask_in_turn, args=((url, url_pipe.recv()), other_end), daemon=True)
    watcher.start()
    pipe.recv()
    times: dict[str, LivezTimes] = {}
    try:
        yield times
        pipe.send("end")
        service, bare = pipe.recv()
        times |= {"service": LivezTimes.of(service), "bare server": LivezTimes.of(bare)}
    finally:
        for process in (watcher, server):
            process.terminate()
            process.join()


def ask_in_turn(urls: tuple[str, str], pipe: Connection) -> None:
    """Ask `/livez` of each every PAUSE_SECONDS until something is sent, and send back the seconds of all answers."""
    clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
    seconds: list[list[float]] = [[] for _ in clients]
    for client in clients:
        client.get("/livez")
    pipe.send("ready")
    while not pipe.poll(PAUSE_SECONDS):
        for client, taken in zip(clients, seconds, strict=True):
            started = time.perf_counter()
            client.get("/livez").raise_for_status()
            taken.append(time.perf_counter() - started)
    pipe.send(seconds)


def serve_bare(pipe: Connection) -> None:
    """Answer every request with BARE_ANSWER. Sends the server's URL first."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            writer.write(BARE_ANSWER)
            await writer.drain()

    async def serve() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            server = await asyncio.start_server(answer, sock=listener)
            pipe.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
            await server.serve_forever()

    asyncio.run(serve())
