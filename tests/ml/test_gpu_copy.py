"""The copy of inverted lists on a GPU answers as the lists do, through all changes.

FAISS's copy is replaced by a second set of lists on the CPU, which has the same interface and cannot be asked to remove
anything either; with a CUDA device, the tests run with FAISS's own copy too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import faiss
import numpy as np
import pytest

from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.indexes import build, load
from ml.indexes.common import gpu_copy
from ml.indexes.common.gpu_copy import MAX_GPU_SELECTION, MAX_SKIPPED, NEEDED_MEMORY, read_free_memory, use_gpu
from ml.indexes.ivf import IvfIndex
from ml.types import Ids, Rows

DIM = 12
HAS_GPU = use_gpu("auto")
each_metric = pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT], ids=str)


class Copies:
    """Counts the copies that were made, and fails to make one if asked to."""

    def __init__(self, make: Any) -> None:
        self._make, self.made, self.has_memory = make, 0, True

    def __call__(self, resources: object, number: int, lists: Any) -> Any:
        if not self.has_memory:
            raise RuntimeError("StandardGpuResources: alloc fail")
        self.made += 1
        return self._make(resources, number, lists)


@pytest.fixture(params=["stand-in", pytest.param("cuda", marks=pytest.mark.cuda)])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    if request.param == "cuda":
        if not HAS_GPU:
            pytest.skip("needs faiss-gpu and a CUDA device")
        copies = Copies(faiss.index_cpu_to_gpu)
    else:
        copies = Copies(lambda resources, number, lists: faiss.clone_index(lists))
        monkeypatch.setattr(faiss, "StandardGpuResources", MagicMock, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
        monkeypatch.setattr(gpu_copy, "read_free_memory", lambda: 2 * NEEDED_MEMORY)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copies, raising=False)
    gpu_copy.first_gpu.cache_clear()
    yield copies
    gpu_copy.first_gpu.cache_clear()


def grid_rows(n: int, seed: int) -> Rows:
    """Small whole numbers: distances are exact in float32 on both sides."""
    return np.random.default_rng(seed).integers(0, 50, (n, DIM)).astype(np.float32)


class Twins:
    """The same index with and without a GPU."""

    def __init__(self, metric: Distance, faces: int = 3000) -> None:
        self.cpu, self.gpu = (IvfIndex(DIM, metric, p=32, device=device) for device in ("cpu", "cuda"))
        self.add(np.arange(faces), 0)

    def add(self, ids: Ids, seed: int) -> None:
        for index in (self.cpu, self.gpu):
            index.add(ids, grid_rows(len(ids), seed))

    def remove(self, ids: Ids) -> None:
        for index in (self.cpu, self.gpu):
            index.remove(ids)

    def assert_same(self, k: int = 10, allowed: Ids | None = None) -> None:
        for m in (4, 32):
            here, there = (index.search(grid_rows(30, 1), k, m=m, allowed=allowed) for index in (self.cpu, self.gpu))
            assert there.ids.tolist() == here.ids.tolist()
            np.testing.assert_allclose(there.distances, here.distances, rtol=1e-6)


@each_metric
def test_the_gpu_finds_what_the_cpu_finds_through_adds_and_removals(copies: Copies, metric: Distance) -> None:
    twins = Twins(metric)
    twins.assert_same()
    twins.add(np.arange(3000, 3100), 2)
    twins.remove(np.arange(0, 400, 7))
    twins.assert_same()
    twins.add(np.arange(0, 400, 7), 3)
    twins.assert_same()
    twins.add(np.arange(0, 400, 14), 4)
    twins.remove(np.arange(0, 400, 28))
    twins.assert_same()
    assert copies.made == 1


def test_the_copy_is_made_anew_after_many_removals_and_after_some_of_which_a_few_were_missing(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN)
    twins.assert_same()
    twins.remove(np.arange(MAX_SKIPPED + 1))
    twins.assert_same()
    assert copies.made == 2
    twins.remove(np.arange(MAX_SKIPPED - 10, MAX_SKIPPED + 10))
    twins.assert_same()
    assert copies.made == 3


def test_the_copy_is_made_anew_after_rows_may_have_moved_to_other_cells(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN)
    twins.assert_same()
    cells = twins.cpu._lists.quantizer.search(grid_rows(3000, 0), 1)[1][:, 0]
    twins.remove(np.flatnonzero(cells == 0)[:-2])
    twins.add(np.arange(3000, 3100), 2)
    twins.assert_same()
    assert copies.made == 2


def test_faces_that_were_never_there_leave_the_copy_as_it_is(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN)
    twins.assert_same()
    twins.remove(np.arange(9000, 9010))
    twins.assert_same()
    assert copies.made == 1


def test_a_search_that_wants_all_faces_gets_the_faces_that_are_left(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN, faces=300)
    twins.assert_same()
    twins.remove(np.arange(100))
    twins.assert_same(k=310)


def test_an_index_that_is_trained_again_forgets_its_copy(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN)
    twins.assert_same()
    for index in (twins.cpu, twins.gpu):
        index.train(grid_rows(500, 5))
    twins.add(np.arange(500), 5)
    twins.assert_same()


def test_filters_and_what_is_beyond_faiss_on_a_gpu_are_searched_on_the_cpu(copies: Copies) -> None:
    twins = Twins(EUCLIDEAN)
    twins.assert_same(allowed=np.arange(0, 3000, 2))
    twins.assert_same(k=MAX_GPU_SELECTION)
    assert copies.made == 0


def test_lists_without_memory_on_the_gpu_stay_on_the_cpu_with_one_warning(
    copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    twins = Twins(EUCLIDEAN)
    copies.has_memory = False
    twins.assert_same()
    twins.remove(np.arange(MAX_SKIPPED + 1))
    twins.assert_same()
    assert [record.message for record in caplog.records] == ["index.left_on_cpu error=StandardGpuResources: alloc fail"]


def test_a_gpu_that_is_full_at_the_start_is_left_alone(
    copies: Copies, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_copy, "read_free_memory", lambda: 59 << 20)
    Twins(EUCLIDEAN).assert_same()
    assert copies.made == 0
    assert "59 MiB of the GPU are free, and FAISS needs 1024" in caplog.text


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_GPU, reason="needs faiss-gpu and a CUDA device")
def test_the_free_memory_of_the_gpu_is_read() -> None:
    assert read_free_memory() > NEEDED_MEMORY


def test_an_index_is_on_the_gpu_before_its_first_search(copies: Copies, tmp_path: Path) -> None:
    rows = grid_rows(3000, 0)
    index = build(np.arange(3000), rows, p=32, device="cuda")
    index.finish_build()
    index.finish_build()
    assert copies.made == 1
    restored = load(tmp_path / "index", index.save(tmp_path / "index"), device="cuda")
    assert copies.made == 2
    queries = grid_rows(5, 1)
    assert restored.search(queries, 10).ids.tolist() == index.search(queries, 10).ids.tolist()
    assert copies.made == 2


def test_the_indexes_of_a_process_share_the_working_memory_of_the_gpu(copies: Copies) -> None:
    first, second = Twins(EUCLIDEAN), Twins(INNER_PRODUCT)
    first.assert_same()
    second.assert_same()
    assert gpu_copy.first_gpu.cache_info().misses == 1
