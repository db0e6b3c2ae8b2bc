"""A process that has worked gives free memory back, but not all the time."""

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
