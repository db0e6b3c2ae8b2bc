"""A process that has worked gives free memory back, but not all the time."""

import subprocess
import sys
import threading
import time

import pytest

from app.allocator import MIN_WORK_SECONDS, TRIM_SECONDS, HeapTrimmer
from app.resources import Resources
from app.serving.engine import open_engine


def test_heaps_are_trimmed_after_work_and_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, worked = 1000.0, 5.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    monkeypatch.setattr(time, "process_time", lambda: worked)
    trims: list[float] = []
    heaps = HeapTrimmer(lambda: trims.append(moment))
    worked += MIN_WORK_SECONDS
    heaps.trim_if_due()
    assert trims == [], "it has just begun"
    moment += TRIM_SECONDS
    heaps.trim_if_due()
    worked += MIN_WORK_SECONDS
    moment += TRIM_SECONDS - 1
    heaps.trim_if_due()
    assert trims == [1000.0 + TRIM_SECONDS]
    moment += 1
    heaps.trim_if_due()
    assert len(trims) == 2
    worked += MIN_WORK_SECONDS / 2
    moment += TRIM_SECONDS
    heaps.trim_if_due()
    assert len(trims) == 2, "it has only looked for work since"


def test_an_api_process_trims_its_heaps_while_it_serves(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    """What requests free lies between what stays, so that more and more of the heap comes into memory."""
    looks = threading.Event()
    monkeypatch.setattr(HeapTrimmer, "trim_if_due", lambda _: looks.set())
    with open_engine(resources):
        assert looks.wait(60)


MANY_PATHS = """
import sys
from pathlib import Path
import psutil
import workers.handlers.train, workers.worker
from app.allocator import trim_heaps, tune_allocator
tune_allocator()
sizes = []
for number in range(60_000):
    Path(f"blobs/{number}")
    if number % 59_999 == 0:
        trim_heaps()
        sizes.append(psutil.Process().memory_info().rss)
print(sizes[1] - sizes[0])
"""


def test_memory_stays_as_it_is_however_many_paths_are_used() -> None:
    """Each part of each path is interned. Without room for them, the table took 1.8 MiB more."""
    grown = subprocess.run([sys.executable, "-c", MANY_PATHS], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 2**20
