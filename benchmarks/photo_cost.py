"""The processor time of a search by photo in the API, against the sum of its stages and against the least program.

    python -m benchmarks.photo_cost [--faces 13000] [--dim 64] [--rounds 60] [--profile FILE]

One client sends a JPEG of 250 x 250 pixels with one face, without sockets (see `benchmarks.request_cost`). The stages
are calls of `ml` and FAISS alone. The least program is FastAPI that takes a form, calls these stages in a thread, and
answers with positions and distances. All take turns. Stages count the processor time of their thread, which does all of
their work, the programs that of the whole process.
"""

import argparse
import cProfile
import io
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import faiss
import uvicorn
import uvloop
from fastapi import FastAPI, UploadFile
from PIL import Image as Pillow
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from benchmarks.limit_server import NEAREST, Neighbours
from benchmarks.load.connections import Address
from benchmarks.load.private_gallery import COLLECTION
from benchmarks.load.processes import restart_with_one_thread
from benchmarks.request_cost import Connection, open_gallery, open_service, wait_until_answered
from benchmarks.search import build_stages
from benchmarks.service_load import format_searches
from ml import images, synthetic_faces
from ml.model import Model
from ml.pipeline import FrontEnd, default_front_end
from ml.types import Ids, Rows
from tests.rows import make_model

SERVICE, LEAST = "service", "least program"
JPEG_QUALITY = 92
BOUNDARY = "4f0a1c5e7d3b49d2a1f0"


def create_least_program(front_end: FrontEnd, model: Model, index: faiss.Index) -> FastAPI:
    """Create the program that searches with the largest face of a photo."""
    app = FastAPI()

    @app.post("/search")
    def search(file: UploadFile) -> Neighbours:
        distances, ids = search_bare(front_end, model, index, file.file.read())
        return Neighbours(ids=ids[0].tolist(), distances=distances[0].tolist())

    return app


def search_bare(front_end: FrontEnd, model: Model, index: faiss.Index, photo: bytes) -> tuple[Rows, Ids]:
    """Search by the largest face of a photo, with `ml` and FAISS alone. Returns (1, NEAREST) distances and ids."""
    image = images.read(photo)
    face = front_end.align(image, front_end.detector.detect(image)[0])
    assert face is not None
    crops = {kind: face.crops[kind][None] for kind in model.recipe.crops}
    distances, ids = index.search(model.embed(model.describe(crops)), NEAREST)
    return distances, ids


def draw_photo() -> bytes:
    """Return a JPEG of a drawn face."""
    buffer = io.BytesIO()
    Pillow.fromarray(synthetic_faces.draw(synthetic_faces.person(1), 0)).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def format_form(address: Address, path: str, photo: bytes) -> bytes:
    """Return a request that sends a photo as the part `file` of a form."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    )
    body = head.encode() + photo + f"\r\n--{BOUNDARY}--\r\n".encode()
    return address.format_request("POST", path, body, f"multipart/form-data; boundary={BOUNDARY}")


async def send_photo(connection: Connection, request: bytes) -> None:
    """Send a search. Raises AssertionError if it is not answered 200."""
    answer = await connection.send(request)
    assert answer.startswith(b"HTTP/1.1 200"), answer


async def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = args.home or Path(name) / "home"
        gallery = open_gallery(home, args.faces, args.dim)
        photo, front_end, model = draw_photo(), default_front_end(), make_model("m-1", args.dim)
        index = faiss.IndexFlatL2(args.dim)
        index.add(gallery.rows)
        async with AsyncExitStack() as stack:
            [service], key = await stack.enter_async_context(open_service(home, 1))
            address, path = Address("127.0.0.1", 80, key), f"/v1/collections/{COLLECTION}/search"
            by_vector = format_searches(address, f"{path}:by-embedding", gallery)[0]
            await wait_until_answered(service, by_vector)
            config = uvicorn.Config(
                create_least_program(front_end, model, index), log_level="warning", access_log=False, lifespan="off"
            )
            config.load()
            targets = {
                SERVICE: (service, format_form(address, path, photo)),
                LEAST: (
                    Connection(HttpToolsProtocol(config, ServerState(), {})),
                    format_form(address, "/search", photo),
                ),
            }
            stages = build_stages(photo, front_end, model, index)
            times = await time_in_turns(stages, targets, args.rounds)
            if args.profile:
                await profile_service(*targets[SERVICE], args.profile)
    print_medians(times, list(stages))


async def time_in_turns(
    stages: dict[str, Any], targets: dict[str, tuple[Connection, bytes]], rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of processor time of each stage and program in each round.

    A stage counts its own thread, which does all of its work; what the service does in the background meanwhile is none
    of it. A program counts all threads.
    """
    times: dict[str, list[float]] = {name: [] for name in (*stages, *targets)}
    for _ in range(rounds):
        for name, stage in stages.items():
            started = time.thread_time()
            stage()
            times[name].append(1000 * (time.thread_time() - started))
        for name, target in targets.items():
            started = time.process_time()
            await send_photo(*target)
            times[name].append(1000 * (time.process_time() - started))
    return times


async def profile_service(connection: Connection, request: bytes, path: Path) -> None:
    """Write a profile of the event loop's thread while it answers searches."""
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    for _ in range(200):
        await send_photo(connection, request)
    profile.disable()
    profile.dump_stats(path)


def print_medians(times: dict[str, list[float]], stages: list[str]) -> None:
    """Print the medians, and the median over all rounds of each program's ratio to the sum of the stages."""
    sums = [sum(of_round) for of_round in zip(*(times[name] for name in stages), strict=True)]
    for name in stages:
        print(f"{name:40s} {statistics.median(times[name]):7.2f} ms")
    print(f"{'sum of the stages':40s} {statistics.median(sums):7.2f} ms")
    for name in (LEAST, SERVICE):
        ratio = statistics.median(whole / total for whole, total in zip(times[name], sums, strict=True))
        print(f"{name:40s} {statistics.median(times[name]):7.2f} ms   {ratio:.2f} of the sum")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=13_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--home", type=Path, help="keep the gallery in this folder, and use it if it is there")
    parser.add_argument("--profile", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    restart_with_one_thread("benchmarks.photo_cost")
    uvloop.run(compare(parse_arguments()))


if __name__ == "__main__":
    main()
