"""Scans that threads share find what one thread finds, and nobody waits for a thread that is busy."""

import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.indexes.base import Neighbours
from ml.indexes.common import inverted_lists
from ml.indexes.common.shared_scans import ScanHelpers, ScanPart, scan_helpers, split_scan
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex
from ml.types import Ids

DIM, FACES, CELLS = 6, 900, 20


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScanHelpers]:
    """Two threads that help with every scan, however short."""
    monkeypatch.setattr(inverted_lists, "MIN_SHARED_NUMBERS", 0)
    monkeypatch.setattr(inverted_lists, "MIN_SHARED_QUERIES", 1)
    scan_helpers().count = 2
    yield scan_helpers()
    scan_helpers().count = 0


def assert_equal(shared: Neighbours, alone: Neighbours) -> None:
    assert shared.ids.tolist() == alone.ids.tolist()
    assert shared.distances.tobytes() == alone.distances.tobytes()
    assert shared.fraction.tolist() == alone.fraction.tolist()


@pytest.mark.parametrize("kind", [FlatIndex, IvfIndex])
@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT], ids=str)
@pytest.mark.parametrize("queries", [1, 2, 3, 17])
def test_a_shared_scan_finds_the_same_faces(
    helpers: ScanHelpers, kind: type[FlatIndex | IvfIndex], metric: Distance, queries: int
) -> None:
    draw = np.random.default_rng(queries)
    rows = draw.integers(-2, 3, (FACES, DIM)).astype(np.float32)  # many are equally near
    index = kind(DIM, metric) if kind is FlatIndex else IvfIndex(DIM, metric, p=CELLS)
    index.add(np.arange(FACES), rows)
    asked = draw.integers(-2, 3, (queries, DIM)).astype(np.float32)
    few: Ids = draw.choice(FACES, 7, replace=False)
    for k, m, allowed in [(1, None, None), (10, 3, None), (10, CELLS, None), (9, 3, few), (FACES + 5, 2, None)]:
        find = partial(index.search, asked, k, m=m, allowed=allowed)
        scan_helpers().count = 0
        alone = find()
        scan_helpers().count = 2
        assert_equal(find(), alone)


def test_only_long_scans_of_several_queries_are_shared(helpers: ScanHelpers, monkeypatch: pytest.MonkeyPatch) -> None:
    index = IvfIndex(DIM, p=CELLS)
    index.add(np.arange(FACES), np.random.default_rng(0).standard_normal((FACES, DIM), np.float32))
    threads = list[int]()

    def note_threads(whole: ScanPart, count: int) -> list[ScanPart]:
        threads.append(count)
        return [whole]

    monkeypatch.setattr(inverted_lists, "split_scan", note_threads)
    numbers = 4 * 5 * FACES * DIM // CELLS  # four queries, five cells each
    for least_queries, least_numbers in [(5, numbers), (4, numbers + 1), (4, numbers)]:
        monkeypatch.setattr(inverted_lists, "MIN_SHARED_QUERIES", least_queries)
        monkeypatch.setattr(inverted_lists, "MIN_SHARED_NUMBERS", least_numbers)
        index.search(np.zeros((4, DIM), np.float32), 3, m=5)
    assert threads == [3]


def test_the_parts_of_a_scan_have_every_query_once() -> None:
    for queries, threads, parts in [(16, 3, 6), (17, 2, 4), (4, 3, 4), (1, 2, 1)]:
        numbers = np.arange(queries * 8).reshape(queries, 8)
        rows = np.arange(queries * DIM, dtype=np.float32).reshape(queries, DIM)
        split = split_scan((rows, numbers.astype(np.float32), numbers), threads)
        assert len(split) == parts
        assert max(len(part[0]) for part in split) - min(len(part[0]) for part in split) <= 1
        for at, whole in enumerate((rows, numbers, numbers)):
            assert np.concatenate([part[at] for part in split]).tolist() == whole.tolist()
            assert all(part[at].flags.c_contiguous for part in split)


def test_what_no_thread_has_begun_is_done_by_the_caller() -> None:
    helpers, blocked = ScanHelpers(), threading.Event()
    try:
        for _ in range(helpers._threads._max_workers):
            helpers._threads.submit(blocked.wait, 30)
        names = helpers.run([lambda: threading.current_thread().name] * 3)
    finally:
        blocked.set()
        helpers._threads.shutdown()
    assert names == [threading.current_thread().name] * 3


def test_a_scan_that_fails_ends_when_no_thread_reads_the_lists_any_more() -> None:
    helpers, begun, ended = ScanHelpers(), threading.Event(), threading.Event()

    def take_long() -> None:
        begun.set()
        threading.Event().wait(0.2)
        ended.set()

    def fail() -> None:
        assert begun.wait(30)
        raise RuntimeError("no memory")

    try:
        with pytest.raises(RuntimeError, match="no memory"):
            helpers.run([fail, take_long])
        assert ended.is_set()
        with pytest.raises(ZeroDivisionError):
            helpers.run([lambda: begun.clear() or begun.wait(0.05), lambda: 1 / 0])
    finally:
        helpers._threads.shutdown()
