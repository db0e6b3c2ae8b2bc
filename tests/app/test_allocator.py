"""A process that has worked gives free memory back once it is idle, but not after every job."""

import time

import pytest

from app.allocator import TRIM_SECONDS, HeapTrimmer


def test_heaps_are_trimmed_after_work_and_at_most_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    trims: list[float] = []
    heaps = HeapTrimmer(lambda: trims.append(moment))
    heaps.trim_if_due()
    assert trims == [], "nothing was done yet"
    heaps.note_work()
    heaps.trim_if_due()
    heaps.note_work()
    moment += TRIM_SECONDS - 1
    heaps.trim_if_due()
    assert trims == [1000.0]
    moment += 1
    heaps.trim_if_due()
    moment += TRIM_SECONDS
    heaps.trim_if_due()
    assert trims == [1000.0, 1000.0 + TRIM_SECONDS], "nothing was done since"
