"""Searches by photo over HTTP by several clients, against the bare pipeline in as many processes as the API has.

    python -m benchmarks.photo_load [--faces 13000] [--clients 16] [--processes 2] [--rounds 5] [--seconds 4]

The pipeline reads a JPEG of 250 x 250 pixels with one face, detects, aligns, describes and embeds it, and searches with
FAISS: calls of `ml` and FAISS alone, one photo after another in each process. The clients send the same photo as forms,
from this process, which takes a share of the same cores. All take turns.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import faiss

from benchmarks.load.private_gallery import write_gallery
from benchmarks.load.processes import restart_with_one_thread
from benchmarks.photo_cost import draw_photo, format_form, search_bare
from benchmarks.service_load import DIM, Target, load, run_target, wait_until_answered
from ml.pipeline import default_front_end
from ml.types import Rows
from tests.rows import make_model


def run_pipeline(orders: Connection, rows: Rows, photo: bytes) -> None:
    """Search by a photo for as many seconds as an order says, and answer with the number of searches."""
    front_end, model, index = default_front_end(), make_model("m-1", rows.shape[1]), faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    while True:
        seconds = orders.recv()
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            search_bare(front_end, model, index, photo)
            count += 1
        orders.send(count)


@contextmanager
def run_pipelines(processes: int, rows: Rows, photo: bytes) -> Iterator[list[Connection]]:
    """Run the pipeline in so many processes, and yield a connection to each."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    started = [context.Process(target=run_pipeline, args=(far, rows, photo), daemon=True) for _, far in pipes]
    for process in started:
        process.start()
    try:
        yield [near for near, _ in pipes]
    finally:
        for process in started:
            process.terminate()
            process.join()


def measure_pipelines(connections: list[Connection], seconds: float) -> float:
    """Return the searches a second of all processes together."""
    for connection in connections:
        connection.send(seconds)
    return sum(connection.recv() for connection in connections) / seconds


def compare(args: argparse.Namespace) -> None:
    photo = draw_photo()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        gallery = write_gallery(Path(name) / "home", args.faces, DIM)
        by_vector = run_target(stack, gallery, Path(name) / "home", api_processes=str(args.processes))
        wait_until_answered(by_vector)
        request = format_form(by_vector.address, f"/v1/collections/{gallery.collection}/search", photo)
        target = Target(by_vector.address, [request], by_vector.processes)
        connections = stack.enter_context(run_pipelines(args.processes, gallery.rows, photo))
        asyncio.run(load(target, args.clients, args.seconds))
        measure_pipelines(connections, args.seconds)
        rounds = [
            (asyncio.run(load(target, args.clients, args.seconds)), measure_pipelines(connections, args.seconds))
            for _ in range(args.rounds)
        ]
    rate, p50_ms, cpu_ms = (
        statistics.median(values) for values in zip(*((s.rate, s.p50_ms, s.cpu_ms) for s, _ in rounds), strict=True)
    )
    ratios = [served.rate / bare for served, bare in rounds]
    print(f"service   {rate:.1f} searches a second, p50 {p50_ms:.0f} ms, {cpu_ms:.1f} ms of processor time each")
    print(f"pipeline  {statistics.median(bare for _, bare in rounds):.1f} searches a second")
    print(f"ratio     {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=13_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    return parser.parse_args(arguments)


def main() -> None:
    restart_with_one_thread("benchmarks.photo_load")
    compare(parse_arguments())


if __name__ == "__main__":
    main()
