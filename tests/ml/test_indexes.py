"""Every index keeps the contract of its base, against a slow twin; the multiple-assignment index keeps its own."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ml import registry
from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.distances.averaged import Averaged
from ml.distances.inner_product import InnerProduct
from ml.distances.signed import Signed
from ml.errors import Corrupt, NotFinite, Unavailable, WrongShape
from ml.indexes import (
    MAX_FLAT_FACES,
    OperatingPoint,
    build,
    choose_operating_point,
    default_cell_count,
    load,
    measure_curve,
)
from ml.indexes.base import Index, Neighbours
from ml.indexes.common.cells import KMEANS_STAGES, fit_centroids
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex
from ml.types import Ids, Rows

KINDS = registry.names("indexes")
DIM = 12
AVERAGE = Averaged(blocks=(5, 7), shares=(0.4, 0.6), biases=(-20.0, -25.0))
METRICS = (EUCLIDEAN, INNER_PRODUCT, Signed(2))
BOTH = [(kind, m) for kind in KINDS for m in ((AVERAGE,) if kind == "reranked" else METRICS)]

each_kind = pytest.mark.parametrize("kind", KINDS)
each_metric = pytest.mark.parametrize("metric", METRICS, ids=str)
each_index = pytest.mark.parametrize(("kind", "metric"), BOTH, ids=str)


def own(kind: str) -> Distance:
    """The metric that an index of this kind is mostly made for."""
    return next(metric for name, metric in BOTH if name == kind)


class SlowIndex:
    """A dict of rows and one distance at a time."""

    def __init__(self, metric: Distance) -> None:
        self.metric, self.held = metric, dict[int, Rows]()

    def add(self, ids: Ids, rows: Rows) -> None:
        self.held.update(zip(ids.tolist(), rows.astype(np.float64), strict=True))

    def remove(self, ids: Ids) -> None:
        for number in ids.tolist():
            self.held.pop(number, None)

    def nearest(self, query: Rows, k: int, allowed: Ids | None = None) -> list[tuple[float, int]]:
        among = self.held.keys() if allowed is None else self.held.keys() & set(allowed.tolist())
        return sorted((self._distance(query, self.held[number]), number) for number in among)[:k]

    def _distance(self, x: Rows, y: Rows) -> float:
        if self.metric.is_euclidean:
            return float(((x - y) ** 2).sum())
        if isinstance(self.metric, InnerProduct):
            negative = self.metric.negative if isinstance(self.metric, Signed) else 0
            signs = np.where(np.arange(DIM) < DIM - negative, 1, -1)
            return float(-(signs * x) @ y)
        assert isinstance(self.metric, Averaged)
        parts = list(zip(self.metric.columns, self.metric.shares, self.metric.biases, strict=True))
        other, same = (
            sum(share / (1 + math.exp(sign * (float(x[at] @ y[at]) + bias))) for at, share, bias in parts)
            for sign in (1, -1)
        )
        return float(np.float32(math.log(other) - math.log(same)))


def grid_rows(n: int, seed: int, levels: int = 5) -> Rows:
    """Small whole numbers: distances are exact in float32, and many are equal."""
    return np.random.default_rng(seed).integers(0, levels, (n, DIM)).astype(np.float32)


def noise(n: int, seed: int, dim: int = DIM) -> Rows:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def some_ids(n: int, seed: int) -> Ids:
    return np.random.default_rng(seed).choice(10 * n, n, replace=False).astype(np.int64)


def made(kind: str, metric: Distance, **options: Any) -> Index:
    index: Index = registry.build("indexes", kind, dim=DIM, metric=metric, **options)
    return index


def assert_same(neighbours: Neighbours, slow: SlowIndex, queries: Rows, k: int, allowed: Ids | None = None) -> None:
    for row, query in enumerate(queries):
        wanted = slow.nearest(query, k, allowed)
        missing = k - len(wanted)
        assert neighbours.ids[row].tolist() == [number for _, number in wanted] + [-1] * missing
        np.testing.assert_allclose(neighbours.distances[row], [d for d, _ in wanted] + [math.inf] * missing, rtol=1e-6)


@each_index
@pytest.mark.parametrize("seed", range(3))
def test_an_exhaustive_search_equals_brute_force_ties_included(kind: str, metric: Distance, seed: int) -> None:
    index, slow = made(kind, metric), SlowIndex(metric)
    ids, rows, queries = some_ids(300, seed), grid_rows(300, seed), grid_rows(20, seed + 100)
    index.add(ids, rows)
    slow.add(ids, rows)
    for k in (1, 7, 299, 300, 310):
        assert_same(index.search(queries, k, m=index.cells), slow, queries, k)


@each_index
def test_adding_removing_and_replacing_faces_equals_brute_force(kind: str, metric: Distance) -> None:
    index, slow = made(kind, metric), SlowIndex(metric)
    rng = np.random.default_rng(7)
    for step in range(25):
        ids = rng.choice(150, 40, replace=False).astype(np.int64)
        if step % 3 == 2:
            index.remove(ids)
            slow.remove(ids)
        else:
            index.add(ids, grid_rows(40, step))
            slow.add(ids, grid_rows(40, step))
        assert index.ids().tolist() == sorted(slow.held)
        assert len(index) == len(slow.held)
    assert_same(index.search(grid_rows(5, 99), 10, m=index.cells), slow, grid_rows(5, 99), 10)


@each_index
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_only_allowed_ids_are_found(kind: str, metric: Distance, share: float) -> None:
    index, slow = made(kind, metric), SlowIndex(metric)
    ids, rows, queries = some_ids(300, 1), grid_rows(300, 1), grid_rows(8, 2)
    index.add(ids, rows)
    slow.add(ids, rows)
    strangers = np.array([-1, 10**7, 10**12], np.int64)
    allowed = np.concatenate([ids[: int(share * 300)], strangers])
    assert_same(index.search(queries, 10, m=index.cells, allowed=allowed), slow, queries, 10, allowed)


@each_index
def test_copies_of_one_face_come_by_id_even_where_k_cuts_through_them(kind: str, metric: Distance) -> None:
    index = made(kind, metric)
    face = noise(1, 0)
    ids = some_ids(200, 3)
    index.add(ids, np.repeat(face, 200, axis=0))
    assert index.search(face, 17, m=index.cells).ids[0].tolist() == np.sort(ids)[:17].tolist()


@each_kind
def test_an_empty_index_finds_nobody(kind: str) -> None:
    index = made(kind, own(kind))
    neighbours = index.search(noise(2, 0), 3)
    assert neighbours.ids.tolist() == [[-1] * 3] * 2
    assert np.isinf(neighbours.distances).all()
    assert index.ids().size == 0
    assert not index.needs_rebuild()


@each_kind
def test_no_queries_get_no_answers(kind: str) -> None:
    index = made(kind, own(kind))
    index.add(np.arange(50), noise(50, 0))
    neighbours = index.search(noise(0, 0), 3)
    assert neighbours.ids.shape == neighbours.distances.shape == (0, 3)
    assert neighbours.fraction.shape == (0,)


@each_kind
def test_vectors_of_another_width_and_nan_are_refused(kind: str) -> None:
    index = made(kind, own(kind))
    with pytest.raises(WrongShape, match=r"\(N, 12\)"):
        index.add(np.arange(2), noise(2, 0, dim=11))
    with pytest.raises(NotFinite):
        index.add(np.arange(1), np.full((1, DIM), np.nan, np.float32))
    with pytest.raises(NotFinite):
        index.search(np.full((1, DIM), np.inf, np.float32), 1)
    with pytest.raises(WrongShape, match="1 or more"):
        index.search(noise(1, 0), 0)
    assert len(index) == 0


@each_kind
@pytest.mark.parametrize("ids", [[1, 1], [-1, 2], [1, 2, 3]])
def test_ids_that_name_no_face_of_their_own_are_refused(kind: str, ids: list[int]) -> None:
    with pytest.raises(WrongShape, match="ids"):
        made(kind, own(kind)).add(np.array(ids), noise(2, 0))


@each_index
def test_a_loaded_snapshot_equals_the_index_and_can_be_changed(kind: str, metric: Distance, tmp_path: Path) -> None:
    index = made(kind, metric)
    ids, rows, queries = some_ids(300, 5), noise(300, 5), noise(9, 6)
    index.add(ids, rows)
    again = load(tmp_path / "index", index.save(tmp_path / "index"))
    before, after = index.search(queries, 5), again.search(queries, 5)
    assert after.ids.tobytes() == before.ids.tobytes()
    assert after.distances.tobytes() == before.distances.tobytes()
    assert after.fraction.tolist() == before.fraction.tolist()
    again.remove(ids[:100])
    again.add(np.array([10**6]), queries[:1])
    assert len(again) == 201
    assert list(tmp_path.iterdir()) == [tmp_path / "index"]


@each_kind
def test_an_empty_snapshot_comes_back_too(kind: str, tmp_path: Path) -> None:
    index = made(kind, own(kind))
    again = load(tmp_path / "index", index.save(tmp_path / "index"))
    again.add(np.arange(30), noise(30, 0))
    assert len(again) == 30


@each_kind
@pytest.mark.parametrize("harm", ["missing", "truncated", "altered", "empty"])
def test_a_damaged_snapshot_is_corrupt_and_never_parsed(kind: str, harm: str, tmp_path: Path) -> None:
    index, path = made(kind, own(kind)), tmp_path / "index"
    index.add(np.arange(100), noise(100, 0))
    digest = index.save(path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    harmed = {
        "truncated": whole[:-1],
        "altered": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
    }
    path.unlink() if harm == "missing" else path.write_bytes(harmed[harm])
    with pytest.raises(Corrupt, match="build it again"):
        load(path, digest)


@each_kind
def test_rows_are_read_back_as_they_were_added(kind: str) -> None:
    index = made(kind, own(kind))
    ids, rows = some_ids(80, 0), noise(80, 0)
    index.add(ids, rows)
    index.remove(ids[:10])
    assert index.rows(ids[30:50]).tobytes() == rows[30:50].tobytes()
    with pytest.raises(WrongShape, match="holds"):
        index.rows(ids[:1])


@each_kind
def test_concurrent_searches_return_the_same_as_one_thread(kind: str) -> None:
    index = made(kind, own(kind))
    index.add(np.arange(2000), noise(2000, 0))
    queries = noise(64, 1)
    alone = [index.search(q[None], 10, m=1 + i % 4).ids.tolist() for i, q in enumerate(queries)]
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(index.search, q[None], 10, m=1 + i % 4) for i, q in enumerate(queries)]
        assert [job.result().ids.tolist() for job in jobs] == alone


@each_index
def test_no_answer_depends_on_what_is_searched_for_with_it(kind: str, metric: Distance) -> None:
    index = made(kind, metric)
    index.add(np.arange(3000), noise(3000, 0))
    for queries in np.split(noise(160, 1), 10):
        together = index.search(queries, 48)
        for row, query in enumerate(queries):
            alone = index.search(query[None], 48)
            assert alone.ids[0].tobytes() == together.ids[row].tobytes()
            assert alone.distances[0].tobytes() == together.distances[row].tobytes()
            assert alone.fraction[0] == together.fraction[row]


@each_index
def test_many_queries_find_what_each_finds_alone(kind: str, metric: Distance) -> None:
    index = made(kind, metric)
    assert (index.search_many(noise(3, 1), 5).ids == -1).all()
    index.add(some_ids(700, 0), noise(700, 0))
    index.remove(some_ids(700, 0)[:50])
    for k in (1, 48, 700):
        many, each = index.search_many(noise(40, 1), k), index.search(noise(40, 1), k)
        assert (many.ids == each.ids).mean() > 0.999
        np.testing.assert_allclose(many.distances, each.distances, rtol=1e-4, atol=1e-4)
        assert many.m == each.m
        np.testing.assert_array_equal(many.fraction, each.fraction)
    with pytest.raises(WrongShape):
        index.search_many(noise(3, 1, DIM + 1), 5)


@each_kind
def test_every_index_satisfies_the_protocol(kind: str) -> None:
    assert isinstance(made(kind, own(kind)), Index)


@pytest.mark.parametrize("metric", [*METRICS, AVERAGE], ids=str)
@pytest.mark.parametrize("cells", [1, 2, 1024])
def test_exactly_one_index_suits_a_collection(cells: int, metric: Distance) -> None:
    assert sum(registry.component("indexes", kind).suits(cells, metric) for kind in KINDS) == 1


def test_an_index_is_built_by_its_name_where_one_is_given() -> None:
    rows = noise(300, 0)
    assert isinstance(build(np.arange(300), rows), FlatIndex)
    named = build(np.arange(300), rows, name="ivf", p=4)
    assert isinstance(named, IvfIndex)
    assert named.cells == 4


@each_metric
def test_probing_every_cell_equals_the_flat_index_bit_for_bit(metric: Distance) -> None:
    ids, rows, queries = some_ids(3000, 0), noise(3000, 0), noise(40, 1)
    flat, ivf = FlatIndex(DIM, metric), IvfIndex(DIM, metric, p=60, device="cpu")
    for index in (flat, ivf):
        index.add(ids, rows)
    exact, whole = flat.search(queries, 20), ivf.search(queries, 20, m=60)
    assert whole.ids.tobytes() == exact.ids.tobytes()
    assert whole.distances.tobytes() == exact.distances.tobytes()


def test_recall_rises_with_m_and_the_fraction_counts_centroids_and_scanned_rows() -> None:
    rows, queries = noise(4000, 0), noise(30, 1)
    ivf = IvfIndex(DIM, p=64).train(rows)
    ivf.add(np.arange(4000), rows)
    truth = ivf.search(queries, 10, m=64).ids
    recalls = []
    for m in (1, 4, 16, 64):
        neighbours = ivf.search(queries, 10, m=m)
        cells = ivf._lists.quantizer.search(queries, m)[1]
        scanned = [sum(ivf._lists.invlists.list_size(int(c)) for c in row) for row in cells]
        assert neighbours.fraction.tolist() == [(64 + s) / 4000 for s in scanned]
        recalls.append(np.mean([len(set(a) & set(b)) for a, b in zip(neighbours.ids, truth, strict=True)]))
    assert recalls == sorted(recalls)
    assert recalls[-1] == 10


def test_few_allowed_faces_are_all_looked_at_whatever_m() -> None:
    rows = noise(2000, 0)
    ivf = IvfIndex(DIM, p=40)
    ivf.add(np.arange(2000), rows)
    neighbours = ivf.search(noise(5, 1), 10, m=1, allowed=np.arange(0, 2000, 100))
    assert (neighbours.ids >= 0).all()
    assert (neighbours.m, neighbours.fraction.tolist()) == (40, [(40 + 20) / 2000] * 5)


def test_the_same_rows_and_seed_give_the_same_cells() -> None:
    rows = noise(1000, 0)
    one, two, other = (IvfIndex(DIM, p=20, seed=seed).train(rows) for seed in (3, 3, 4))
    centroids = [np.asarray(i._lists.quantizer.reconstruct_n(0, 20)).tobytes() for i in (one, two, other)]
    assert centroids[0] == centroids[1] != centroids[2]


def test_an_index_asks_to_be_rebuilt_once_it_has_grown_past_twice_its_training() -> None:
    ivf = IvfIndex(DIM, p=10)
    ivf.add(np.arange(200), noise(200, 0))
    ivf.add(np.arange(200, 400), noise(200, 1))
    assert not ivf.needs_rebuild()
    ivf.add(np.array([400]), noise(1, 2))
    assert ivf.needs_rebuild()


def test_an_index_asks_to_be_rebuilt_when_one_cell_swells() -> None:
    ivf = IvfIndex(DIM, p=10)
    ivf.add(np.arange(200), noise(200, 0))
    assert not ivf.needs_rebuild()
    ivf.add(np.arange(200, 380), noise(1, 0).repeat(180, axis=0))
    assert ivf.needs_rebuild()


def test_a_small_collection_is_searched_flat_and_a_large_one_by_cells() -> None:
    rows = noise(MAX_FLAT_FACES + 1, 0, dim=4)
    small, large = (build(np.arange(n), rows[:n]) for n in (MAX_FLAT_FACES, MAX_FLAT_FACES + 1))
    assert isinstance(small, FlatIndex)
    assert isinstance(large, IvfIndex)
    assert large.cells == default_cell_count(MAX_FLAT_FACES + 1) == 128
    assert default_cell_count(1_012_810) == 1024
    small.add(np.array([MAX_FLAT_FACES]), rows[-1:])
    assert small.needs_rebuild()


def test_an_index_of_fewer_rows_than_cells_has_as_many_cells_as_rows() -> None:
    ivf = IvfIndex(DIM, p=64)
    ivf.add(np.arange(5), noise(5, 0))
    assert ivf.cells == 5
    assert ivf.search(noise(1, 1), 5).ids.min() == 0


def test_the_measured_curve_ends_at_full_recall_and_answers_what_m_to_use() -> None:
    index = build(np.arange(3000), noise(3000, 0), p=32)
    curve = measure_curve(index, noise(20, 1))
    assert [point.m for point in curve] == [1, 2, 4, 8, 16, 32]
    assert curve[-1].recall == 1
    assert all(point.ms > 0 for point in curve)


def test_the_cheapest_point_that_reaches_the_recall_within_the_time_is_chosen() -> None:
    curve = (
        OperatingPoint(1, 0.5, 0.01, 1.0),
        OperatingPoint(2, 0.8, 0.1, 2.0),
        OperatingPoint(4, 0.95, 0.2, 4.0),
        OperatingPoint(8, 1, 1, 8.0),
    )
    assert choose_operating_point(curve, target_recall=0.75).m == 2
    assert choose_operating_point(curve, max_latency_ms=5).m == 4
    assert choose_operating_point(curve, target_recall=0.99, max_latency_ms=5).m == 4
    assert choose_operating_point(curve, target_recall=0.1, max_latency_ms=0.1).m == 1
    assert choose_operating_point(curve).m == 8


def test_asking_for_a_gpu_where_there_is_none_says_what_to_do() -> None:
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable, match="extra `gpu`"):
        IvfIndex(DIM, device="cuda")
    assert IvfIndex(DIM, device="auto")._gpu is None


def test_reranking_finds_nearly_all_that_scoring_everybody_finds() -> None:
    rows, queries, ids = noise(4000, 1), noise(60, 2), np.arange(4000)
    metric = Averaged(blocks=(5, 7), shares=(0.5, 0.5), biases=(-3.0, -4.0))
    index = build(ids, rows, metric, p=16)
    every = index.search(queries, 10, m=16)
    assert every.fraction.tolist() == [1.0] * 60
    recall = []
    for m in (1, 4, 15):
        neighbours = index.search(queries, 10, m=m)
        recall.append((neighbours.distances <= every.distances[:, -1:]).mean())
    assert recall[0] < recall[1] < recall[2]
    assert recall[2] > 0.99


def test_few_faces_are_scored_all_of_them_by_an_average() -> None:
    rows, queries, ids = noise(50, 1), noise(4, 2), np.arange(50)
    neighbours = build(ids, rows, AVERAGE).search(queries, 10)
    assert neighbours.ids.tolist() == np.argsort(AVERAGE.distances(queries, rows), axis=1)[:, :10].tolist()


@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT, AVERAGE], ids=str)
def test_a_reranked_index_is_for_averages_of_its_own_width(metric: Distance) -> None:
    with pytest.raises(WrongShape, match="average"):
        registry.build("indexes", "reranked", dim=DIM + 1, metric=metric)


def test_cells_found_in_stages_lie_as_well_as_those_of_a_long_search() -> None:
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((16_000, 8)).astype(np.float32)

    def measure_spread(stages: Sequence[tuple[int, int]]) -> float:
        centroids = fit_centroids(rows, 32, EUCLIDEAN, 0, stages)
        return float(EUCLIDEAN.distances(rows, centroids).min(axis=1).mean())

    staged, coarse = measure_spread(KMEANS_STAGES), measure_spread(KMEANS_STAGES[:1])
    assert staged < coarse
    assert staged < 1.02 * measure_spread([(512, 25)])
