"""The processor time of a search by vector in the API, behind the parser of HTTP and without sockets.

    python -m benchmarks.request_cost [--faces 13000] [--dim 64] [--rounds 9] [--requests 500] [--clients 1]
        [--profile FILE]

Bytes of requests go into the protocol of the server, and its answers are counted and dropped. The least program
(`benchmarks/limit_server.py`) takes the same searches in turn, so the ratio holds on a machine that does other work.
Several clients send their requests in the same turn of the event loop.
"""

import argparse
import asyncio
import cProfile
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app.access.keys import create_key
from app.config import Settings
from app.db.session import writing
from app.deps.server.configuration import configure_server
from app.imports import collect_rarely
from app.main import create_app
from app.resources import open_resources
from benchmarks.limit_server import build_index
from benchmarks.limit_server import create_app as create_least_program
from benchmarks.load.connections import Address
from benchmarks.load.private_gallery import COLLECTION, FACES_PER_PERSON, write_gallery
from benchmarks.load.processes import restart_with_one_thread
from benchmarks.load.traffic import Gallery
from benchmarks.service_load import format_searches
from ml.indexes import default_cell_count, scan_helpers
from tests.rows import people

OURS, LEAST = "service", "least program"


class CountingTransport(asyncio.Transport):
    """Drops what is written to it, and tells when an answer is complete."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8_000)})
        self.written = bytearray()
        self.done = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data
        head, found, body = self.written.partition(b"\r\n\r\n")
        if found:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if len(body) >= length:
                self.done.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Connection:
    """One connection to a program that runs in this process."""

    def __init__(self, protocol: Any) -> None:
        self.protocol, self.transport = protocol, CountingTransport()
        protocol.connection_made(self.transport)

    async def send(self, request: bytes) -> bytes:
        """Send a request and return its answer."""
        self.transport.written.clear()
        self.transport.done.clear()
        self.protocol.data_received(request)
        await self.transport.done.wait()
        return bytes(self.transport.written)


@asynccontextmanager
async def open_service(home: Path, clients: int) -> AsyncIterator[tuple[list[Connection], str]]:
    """Open the API over a home, and yield connections and a key."""
    settings = Settings(home=home, default_recogniser="lbp", wpca_after_faces=0)
    with open_resources(settings) as resources, writing(resources.database) as session:
        key = create_key(session, "admin", "benchmark")[1]
    app = create_app(settings)
    config = configure_server(app, settings, lifespan="on")
    config.load()
    state = ServerState()
    async with app.router.lifespan_context(app) as app_state:
        collect_rarely()  # as a process of the API does; so does the least program then, in this process
        scan_helpers().count = 0  # whose processor time would not be counted
        yield [Connection(config.http_protocol_class(config, state, dict(app_state))) for _ in range(clients)], key


def open_least_program(gallery: Gallery, folder: Path, cells: int, probed: int, clients: int) -> list[Connection]:
    """Open the least program over the rows of a gallery."""
    np.save(folder / "vectors.npy", gallery.rows)
    app = create_least_program(build_index(folder / "vectors.npy", cells, probed))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    config.load()
    return [Connection(HttpToolsProtocol(config, ServerState(), {})) for _ in range(clients)]


async def measure(connections: list[Connection], requests: list[bytes], count: int) -> float:
    """Return the microseconds of processor time of a request, of which each connection sends one at a time."""
    count = len(connections) * max(1, count // len(connections))
    started = time.thread_time()
    for first in range(0, count, len(connections)):
        turns = range(first, first + len(connections))
        sends = [c.send(requests[i % len(requests)]) for c, i in zip(connections, turns, strict=True)]
        await (asyncio.gather(*sends) if len(sends) > 1 else sends[0])
    return 1e6 * (time.thread_time() - started) / count


async def wait_until_answered(connection: Connection, request: bytes) -> dict[str, Any]:
    """Wait until a search is answered from memory, and return its answer."""
    while True:
        answer = await connection.send(request)
        if answer.startswith(b"HTTP/1.1 200") and b'"calibrated":true' in answer:
            return json.loads(answer.partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]
        await asyncio.sleep(0.2)


def open_gallery(home: Path, faces: int, dim: int) -> Gallery:
    """Return the gallery of a home, which is written if it is not there."""
    if not home.exists():
        return write_gallery(home, faces, dim)
    rows, subjects = people(faces // FACES_PER_PERSON, FACES_PER_PERSON, dim=dim)
    return Gallery(COLLECTION, rows, subjects, [])


async def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = args.home or folder / "home"
        gallery = open_gallery(home, args.faces, args.dim)
        path = f"/v1/collections/{gallery.collection}/search:by-embedding"
        async with AsyncExitStack() as stack:
            ours, key = await stack.enter_async_context(open_service(home, args.clients))
            requests = {OURS: format_searches(Address("127.0.0.1", 80, key), path + args.query, gallery)}
            answer = await wait_until_answered(ours[0], requests[OURS][0])
            least = open_least_program(gallery, folder, default_cell_count(args.faces), answer["m"], args.clients)
            requests[LEAST] = format_searches(Address("127.0.0.1", 80, ""), "/search", gallery)
            connections = {OURS: ours, LEAST: least}
            for turn, connection in enumerate(connections.values()):
                await measure(connection, [*requests.values()][turn], 300)
            if args.profile:
                profile = cProfile.Profile(time.thread_time)
                profile.enable()
                await measure(ours, requests[OURS], 2000)
                profile.disable()
                profile.dump_stats(args.profile)
            rounds = [
                {n: await measure(c, requests[n], args.requests) for n, c in connections.items()}
                for _ in range(args.rounds)
            ]
            medians = {n: statistics.median(r[n] for r in rounds) for n in connections}
            ratio = statistics.median(r[LEAST] / r[OURS] for r in rounds)
            figures = ", ".join(f"{name} {median:.0f}" for name, median in medians.items())
            print(
                f"{args.faces} faces, {answer['m']} cells probed, {args.clients} clients; "
                f"processor microseconds of a search: {figures}; least / service {ratio:.2f}"
            )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=13_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--query", default="", help="appended to the path of a search, such as ?limit=1")
    parser.add_argument("--home", type=Path, help="keep the gallery in this folder, and use it if it is there")
    parser.add_argument("--profile", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    restart_with_one_thread("benchmarks.request_cost")
    uvloop.run(compare(parse_arguments()))


if __name__ == "__main__":
    main()
