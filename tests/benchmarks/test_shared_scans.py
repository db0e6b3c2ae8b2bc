"""Both ways to scan are timed with the same searches, and must find the same faces."""

import numpy as np
import pytest

from benchmarks import shared_scans
from ml.indexes import build, scan_helpers
from ml.indexes.common import inverted_lists


def test_each_size_of_batch_is_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted_lists, "MIN_SHARED_NUMBERS", 1)
    monkeypatch.setattr(inverted_lists, "MIN_SHARED_QUERIES", 1)
    monkeypatch.setattr(shared_scans, "BATCHES", (1, 4))
    shared_scans.main(["--faces", "12000", "--dim", "4", "--rounds", "1", "--helpers", "1"])
    printed = capsys.readouterr().out
    assert "12,000 faces of 4 numbers, 128 cells, 32 probed" in printed
    assert printed.count(" ms ") == 4
    assert scan_helpers().count == 0


def test_other_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((500, 4), np.float32)
    index = build(np.arange(500), rows)
    search = index.search

    def search_wrongly(queries: object, k: int) -> object:
        found = search(queries, k)  # type: ignore[arg-type]
        return search(rows[:3] + 1, k) if scan_helpers().count else found

    monkeypatch.setattr(index, "search", search_wrongly)
    with pytest.raises(AssertionError):
        shared_scans.check_answers(index, rows[:3], 1)
    scan_helpers().count = 0
