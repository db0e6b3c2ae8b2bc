"""The index with two stages: its codes, its candidates, where its rows lie, and what it does with too few rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.distances import EUCLIDEAN, INNER_PRODUCT, Distance
from ml.distances.averaged import Averaged
from ml.distances.signed import Signed
from ml.errors import WrongShape
from ml.indexes import (
    MAX_FLAT_FACES,
    CandidatePoint,
    build,
    choose_candidates,
    load,
    measure_candidate_curve,
    measure_curve,
)
from ml.indexes.base import Index
from ml.indexes.common.compressed_lists import MIN_TRAINING_ROWS
from ml.indexes.common.row_store import RowStore
from ml.indexes.flat import FlatIndex
from ml.indexes.two_stage import TwoStageIndex
from ml.types import Ids, Rows

DIM = 24
COUNT = 4000
METRICS = (EUCLIDEAN, INNER_PRODUCT, Signed(2))
each_metric = pytest.mark.parametrize("metric", METRICS, ids=str)


def faces(count: int, seed: int, dim: int = DIM) -> Rows:
    """Faces of a few hundred people, as unevenly dense as embeddings."""
    draw = np.random.default_rng(seed)
    people = np.random.default_rng(1000).normal(size=(300, dim))
    return (people[draw.integers(0, 300, count)] + 0.5 * draw.normal(size=(count, dim))).astype(np.float32)


def some_ids(count: int) -> Ids:
    return np.random.default_rng(5).choice(10 * count, count, replace=False).astype(np.int64)


def make_index(metric: Distance = EUCLIDEAN, p: int = 16, **options: Any) -> tuple[TwoStageIndex, Ids, Rows]:
    index, ids, rows = TwoStageIndex(DIM, metric, p=p, **options), some_ids(COUNT), faces(COUNT, 0)
    index.add(ids, rows)
    return index, ids, rows


def measure_recall(index: Index, truth: Index, queries: Rows, **search: Any) -> float:
    ids, true = index.search(queries, 10, **search).ids, truth.search(queries, 10).ids
    return float(np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(ids, true, strict=True)]))


def make_flat(ids: Ids, rows: Rows, metric: Distance = EUCLIDEAN) -> FlatIndex:
    flat = FlatIndex(DIM, metric)
    flat.add(ids, rows)
    return flat


@each_metric
def test_all_cells_without_a_number_of_candidates_equal_the_flat_index_bit_for_bit(metric: Distance) -> None:
    index, ids, rows = make_index(metric)
    flat, queries = make_flat(ids, rows, metric), faces(30, 1)
    for candidates in (None, COUNT):
        exact, neighbours = flat.search(queries, 20), index.search(queries, 20, m=16, candidates=candidates)
        assert neighbours.ids.tobytes() == exact.ids.tobytes()
        assert neighbours.distances.tobytes() == exact.distances.tobytes()
        assert neighbours.fraction.tolist() == [1.0] * 30


@each_metric
def test_no_answer_depends_on_what_is_searched_for_with_it(metric: Distance) -> None:
    index, _, _ = make_index(metric)
    for queries in np.split(faces(160, 1), 10):
        together = index.search(queries, 20, m=4)
        alone = [index.search(query[None], 20, m=4) for query in queries]
        assert together.ids.tobytes() == np.concatenate([one.ids for one in alone]).tobytes()
        assert together.distances.tobytes() == np.concatenate([one.distances for one in alone]).tobytes()


@each_metric
def test_the_distances_of_candidates_are_exact(metric: Distance) -> None:
    index, ids, rows = make_index(metric)
    queries = faces(30, 1)
    neighbours = index.search(queries, 10, m=4, candidates=50)
    everybody = make_flat(ids, rows, metric).search(queries, COUNT)
    for query in range(30):
        exact = dict(zip(everybody.ids[query].tolist(), everybody.distances[query].tolist(), strict=True))
        assert [exact[pk] for pk in neighbours.ids[query].tolist()] == neighbours.distances[query].tolist()
        assert (np.diff(neighbours.distances[query]) >= 0).all()


@each_metric
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_recall_rises_with_the_candidates_and_reaches_nearly_all(metric: Distance, bits: int) -> None:
    index, ids, rows = make_index(metric, bits=bits)
    flat, queries = make_flat(ids, rows, metric), faces(60, 1)
    recalls = [measure_recall(index, flat, queries, m=16, candidates=count) for count in (20, 200, 1500)]
    assert recalls == sorted(recalls)
    assert bits == 4 or recalls[0] < 1
    assert recalls[2] > 0.98


def test_more_bits_keep_more_of_the_nearest() -> None:
    queries = faces(60, 1)
    recalls, sizes = [], []
    for bits in (1, 2, 4):
        index, ids, rows = make_index(bits=bits)
        recalls.append(measure_recall(index, make_flat(ids, rows), queries, m=16, candidates=30))
        sizes.append(index.bytes_per_face)
    assert recalls == sorted(set(recalls))
    assert np.diff(sizes).tolist() == [DIM / 8, DIM / 4]


def test_faces_added_after_removals_are_found_as_in_a_new_index() -> None:
    index, ids, rows = make_index()
    flat, queries = make_flat(ids, rows), faces(60, 1)
    search = {"m": 16, "candidates": 40}
    fresh = measure_recall(index, flat, queries, **search)
    draw = np.random.default_rng(3)
    for _ in range(4):
        gone = draw.permutation(COUNT)[:1500]
        index.remove(ids[gone])
        assert len(index) == COUNT - 1500
        index.add(ids[gone], rows[gone])
    assert measure_recall(index, flat, queries, **search) == fresh


def test_removed_faces_are_never_found_and_their_rows_are_overwritten() -> None:
    index, ids, rows = make_index()
    slots = index._store.find_slots(ids[:500])
    index.remove(ids[:500])
    neighbours = index.search(rows[:500], 10, m=8, candidates=100)
    assert not np.isin(neighbours.ids, ids[:500]).any()
    assert not index._store._rows[slots].any()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
def test_only_allowed_faces_are_found_and_few_are_all_looked_at(share: float) -> None:
    index, ids, rows = make_index()
    allowed, queries = ids[: int(share * COUNT)], faces(20, 1)
    exact = make_flat(ids, rows).search(queries, 10, allowed=allowed)
    neighbours = index.search(queries, 10, m=16, candidates=100, allowed=allowed)
    assert np.isin(neighbours.ids, allowed).all()
    if len(allowed) <= 100:
        assert neighbours.ids.tolist() == exact.ids.tolist()
    else:
        assert (neighbours.ids == exact.ids).mean() > 0.9


def test_a_search_ranks_at_least_twice_as_many_candidates_as_it_returns() -> None:
    index, _, _ = make_index()
    neighbours = index.search(faces(3, 1), 500, m=16, candidates=1)
    assert (neighbours.ids >= 0).all()
    assert neighbours.fraction.tolist() == [(16 + COUNT + 1000) / COUNT] * 3


@pytest.mark.parametrize("rows_in", ["memory", "file"])
def test_a_snapshot_with_codes_returns_with_the_same_answers(rows_in: str, tmp_path: Path) -> None:
    index, ids, rows = make_index(rows=rows_in, folder=tmp_path)
    index.remove(ids[:700])
    queries, path = faces(20, 1), tmp_path / "index"
    again = load(path, index.save(path))
    assert isinstance(again, TwoStageIndex)
    for search in ({"m": 4, "candidates": 60}, {"m": 16}, {}):
        before, after = index.search(queries, 5, **search), again.search(queries, 5, **search)
        assert after.ids.tobytes() == before.ids.tobytes()
        assert after.distances.tobytes() == before.distances.tobytes()
    assert list(tmp_path.iterdir()) == [path]
    again.add(ids[:700], rows[:700])
    assert again.ids().tolist() == sorted(ids.tolist())
    assert (again.search(rows[:700], 1, m=16, candidates=60).ids[:, 0] == ids[:700]).mean() > 0.99
    assert again.options == index.options


def test_rows_in_a_file_are_read_back_while_it_grows(tmp_path: Path) -> None:
    store, draw = RowStore(DIM, tmp_path), np.random.default_rng(0)
    kept: dict[int, Rows] = {}
    for step in range(12):
        ids = np.setdiff1d(draw.choice(20_000, 900, replace=False), list(kept)).astype(np.int64)
        rows = faces(len(ids), step)
        store.add(ids, rows)
        kept.update(zip(ids.tolist(), rows, strict=True))
        gone = draw.choice(list(kept), 200, replace=False)
        store.remove(gone)
        for number in gone.tolist():
            del kept[number]
    assert store.ids.tolist() == sorted(kept)
    assert store.read(store.ids).tobytes() == np.stack([kept[number] for number in sorted(kept)]).tobytes()
    assert list(tmp_path.iterdir()) == []


def test_too_few_rows_for_codes_are_all_ranked_until_a_rebuild() -> None:
    count = MIN_TRAINING_ROWS - 1
    index, ids, rows = TwoStageIndex(DIM, p=16), np.arange(count), faces(count, 0)
    index.add(ids, rows)
    assert (index.cells, index.default_candidates) == (1, None)
    neighbours = index.search(faces(5, 1), 10, m=1, candidates=20)
    assert neighbours.ids.tolist() == make_flat(ids, rows).search(faces(5, 1), 10).ids.tolist()
    assert not index.needs_rebuild()
    index.add(np.arange(count, MAX_FLAT_FACES + 1), faces(MAX_FLAT_FACES + 1 - count, 2))
    assert index.needs_rebuild()
    rebuilt = build(ids, rows, name="two_stage")
    assert rebuilt.cells == 1


def test_it_is_rebuilt_when_it_has_doubled_or_a_cell_swells() -> None:
    index, ids, rows = make_index()
    assert not index.needs_rebuild()
    index.add(ids + 10 * COUNT, faces(COUNT, 1))
    assert not index.needs_rebuild()
    index.add(np.array([-1 + 100 * COUNT]), rows[:1])
    assert index.needs_rebuild()
    uneven, ids, rows = make_index()
    uneven.add(ids[:3500] + 10 * COUNT, rows[:1].repeat(3500, axis=0))
    assert uneven.needs_rebuild()


def test_it_is_rebuilt_when_many_of_the_faces_were_removed_that_its_codes_are_fitted_to(tmp_path: Path) -> None:
    index, ids, _ = make_index()
    index.remove(ids[: COUNT // 10])
    assert not index.needs_rebuild()
    index.remove(ids[COUNT // 10 : COUNT // 10 + 1])
    path = tmp_path / "index"
    again = load(path, index.save(path))
    assert index.needs_rebuild()
    assert again.needs_rebuild()
    again.finish_build()
    assert not again.needs_rebuild()


def test_faces_that_are_only_changed_do_not_count_as_removed() -> None:
    index, ids, rows = make_index()
    index.add(ids[: COUNT // 2], rows[: COUNT // 2] + 0.01)
    assert not index.needs_rebuild()
    index.remove(ids[: COUNT // 10])
    assert not index.has_lost_rows()
    index.remove(ids[COUNT // 10 : COUNT // 10 + 1])
    assert index.has_lost_rows()


@pytest.mark.parametrize("dim", [1, 3, 7, 129])
def test_embeddings_of_any_width_have_codes(dim: int) -> None:
    rows = faces(1200, 0, dim)
    for bits in (1, 2, 4):
        index = TwoStageIndex(dim, p=4, bits=bits)
        index.add(np.arange(1200), rows)
        assert index.cells == 4
        assert (index.search(rows[:50], 1, m=4, candidates=300).distances == 0).mean() > 0.9


def test_the_same_rows_and_seed_give_the_same_answers() -> None:
    queries = faces(40, 1)
    one, two, other = (make_index(seed=seed)[0].search(queries, 10, m=4, candidates=20) for seed in (3, 3, 4))
    assert one.ids.tobytes() == two.ids.tobytes()
    assert one.ids.tobytes() != other.ids.tobytes()


def test_wrong_options_and_metrics_are_refused() -> None:
    with pytest.raises(TypeError, match="no option 'bit'"):
        TwoStageIndex(DIM, bit=2)
    with pytest.raises(WrongShape, match="cells"):
        TwoStageIndex(DIM, p=0)
    with pytest.raises(WrongShape, match="metric"):
        TwoStageIndex(DIM, Averaged(blocks=(DIM,), shares=(1.0,), biases=(0.0,)))


def test_it_is_built_by_its_name_with_its_options(tmp_path: Path) -> None:
    rows = faces(2000, 0)
    index = build(np.arange(2000), rows, name="two_stage", p=8, folder=tmp_path, further={"bits": 4, "rows": "file"})
    assert isinstance(index, TwoStageIndex)
    assert (index.cells, index.options.bits, index.options.rows) == (8, 4, "file")
    assert index.bytes_per_face < 4 * DIM


def test_the_candidate_curve_is_measured_until_all_are_kept() -> None:
    index, _, _ = make_index(bits=1)
    curve = measure_candidate_curve(index, faces(60, 1), COUNT // 10)
    counts = [point.candidates for point in curve]
    assert counts == [20 << i for i in range(len(counts))]
    assert len(curve) > 1
    recalls = [point.recall for point in curve]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1 or counts[-1] * 2 > COUNT // 10
    assert all(point.recall_at_1 >= point.recall and point.ms > 0 for point in curve)
    assert measure_candidate_curve(make_flat(np.arange(100), faces(100, 0)), faces(5, 1), 10) == ()


def test_the_curve_over_cells_ranks_the_candidates_and_ends_exact() -> None:
    index, _, _ = make_index()
    curve = measure_curve(index, faces(20, 1), candidates=30)
    assert [(point.m, point.candidates) for point in curve] == [(1, 30), (2, 30), (4, 30), (8, 30), (16, None)]
    assert curve[-1].recall == 1
    assert "candidates" not in curve[-1].to_dict()
    assert curve[0].to_dict()["candidates"] == 30


def test_the_fewest_candidates_that_reach_the_recall_are_chosen() -> None:
    curve = (CandidatePoint(20, 0.9, 0.8, 0.1), CandidatePoint(40, 1, 0.95, 0.1), CandidatePoint(80, 1, 0.99, 0.2))
    assert choose_candidates(curve, 0.9).candidates == 40
    assert choose_candidates(curve, 0.5).candidates == 20
    assert choose_candidates(curve, 1.0).candidates == 80
