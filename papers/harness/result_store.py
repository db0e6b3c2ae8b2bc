"""Store results under the hash of their keys, so that an interrupted run continues where it stopped."""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ml.embedders.base import Progress, ignore_progress
from ml.errors import Corrupt
from ml.files import atomic_write, hash_bytes
from papers.harness.table_types import Computation, Result

FACTS, ARRAYS, TIMES, LOCKS = "facts.json", "arrays.npz", "times.json", "locks"


class ResultMissing(Corrupt):
    """A result was requested before it was computed."""


class ResultArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a result, each read on demand: a table of ranks does not need the embeddings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with np.load(path) as kept:
            self._names = tuple(kept.files)

    def __getitem__(self, name: str) -> NDArray[Any]:
        with np.load(self._path) as kept:
            array: NDArray[Any] = kept[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ResultStore:
    """A folder with one folder per result, written atomically. It can be deleted at any time.

    Several processes can use it at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, computation: Computation) -> bool:
        return (self._at(computation) / FACTS).exists()

    def get(self, computation: Computation) -> Result:
        """Return a result. Raises ResultMissing, and Corrupt if it cannot be read."""
        folder = self._at(computation)
        if not self.has(computation):
            raise ResultMissing(f"{computation.name} was not computed, or its result was deleted")
        try:
            record = json.loads((folder / FACTS).read_text())
            return Result(record, ResultArrays(folder / ARRAYS), folder)
        except (OSError, ValueError) as error:
            raise Corrupt(f"the result of {computation.name} cannot be read ({error}); delete {folder.name}") from error

    def do(self, computation: Computation, progress: Progress = ignore_progress) -> Result:
        """Return the result of a computation; run it if it is missing."""
        if not self.has(computation):
            part = self.folder / f".{uuid4().hex}"
            part.mkdir()
            try:
                self._compute(computation, part, progress)
                part.rename(self._at(computation))
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return self.get(computation)

    @contextmanager
    def claim(self, computation: Computation) -> Iterator[bool]:
        """Claim the computations of its group, without waiting. Yields False where another process has claimed them.

        The claim ends with the block, and with the process at the latest.
        """
        lock = FileLock(self.folder / LOCKS / _digest(computation.group), blocking=False)
        try:
            claimed = lock.acquire()
        except Timeout:
            yield False
            return
        with claimed:
            yield True

    def read_times(self) -> dict[str, float]:
        """Return how long each kind of computation took here the last time, in seconds, by `digest_kind`."""
        path = self.folder / TIMES
        times: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        return times

    def _compute(self, computation: Computation, part: Path, progress: Progress) -> None:
        started, cpu = time.monotonic(), time.process_time()
        record, arrays = computation.run(part, progress)
        took = time.monotonic() - started
        stamped = {"seconds": took, "cpu_seconds": time.process_time() - cpu, **stamp()}
        np.savez(part / ARRAYS, **arrays)  # type: ignore[arg-type]
        (part / FACTS).write_text(json.dumps({**record, **stamped, "key": computation.key}, indent=1, default=float))
        self._remember(computation, took)

    def _remember(self, computation: Computation, seconds: float) -> None:
        times = self.read_times() | {digest_kind(computation): round(seconds, 2)}
        with atomic_write(self.folder / TIMES) as file:
            file.write(json.dumps(times).encode())

    def _at(self, computation: Computation) -> Path:
        return self.folder / _digest(computation.key)


def digest_kind(computation: Computation) -> str:
    return _digest(computation.kind)


def _digest(key: str | Mapping[str, Any]) -> str:
    return hash_bytes(json.dumps(key, sort_keys=True, default=float).encode())[:24]


def stamp() -> dict[str, str]:
    """Return the date, commit and machine of a result."""
    return {"date": datetime.now(UTC).date().isoformat(), "commit": _commit(), "machine": _machine()}


@cache
def _commit() -> str:
    """Return the commit of the code that this process has loaded; what is committed later is not what runs."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@cache
def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((text.split(":")[1].strip() for text in lines if text.startswith("model name")), platform.processor())
    return f"{os.cpu_count()} x {model or platform.machine()}"
