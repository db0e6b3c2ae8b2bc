import numpy as np
import pytest
import scipy.cluster.hierarchy
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score

from ml import indexes
from ml.calibration import Calibration, ImpostorDistances
from ml.distances import EUCLIDEAN, INNER_PRODUCT
from ml.errors import WrongShape
from ml.people_discovery.constraints import PairConstraints, apply_constraints
from ml.people_discovery.discovery import (
    DiscoveredPeople,
    KnownPeople,
    discover_people,
    find_link_distance,
)
from ml.people_discovery.linkage import ClusterMeans
from ml.people_discovery.merging import MergeRule, merge_clusters
from ml.people_discovery.neighbour_graph import find_links
from ml.people_discovery.stranger_levels import StrangerLevels, draw_cohort

NO_PAIRS = np.empty((0, 2), np.int64)


def make_people(count: int, photos: int, *, noise: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unit length of `count` people, in shuffled order, and the person of each."""
    draw = np.random.default_rng(seed)
    who = draw.permutation(np.repeat(np.arange(count), photos))
    rows = draw.normal(size=(count, 32))[who] + noise * 2 * draw.normal(size=(len(who), 32))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), who


def calibrate(rows: np.ndarray, who: np.ndarray) -> Calibration:
    distances, same = pdist(rows, "sqeuclidean"), pdist(who[:, None], "hamming") == 0
    return Calibration.fit(distances[same], distances[~same])


def discover(
    rows: np.ndarray, calibration: Calibration, known: KnownPeople | None = None, sources: np.ndarray | None = None
) -> DiscoveredPeople:
    ids = np.arange(len(rows))
    index = indexes.build(ids, rows, EUCLIDEAN)
    links = find_links(index, ids, ids if sources is None else sources, find_link_distance(calibration))
    return discover_people(rows, links, EUCLIDEAN, calibration, known)


@pytest.mark.parametrize("metric", [EUCLIDEAN, INNER_PRODUCT])
def test_average_linkage_equals_the_mean_over_all_pairs(metric: object) -> None:
    rows, _ = make_people(6, 5)
    labels = np.random.default_rng(1).integers(0, 8, len(rows))
    labels[:8] = np.arange(8)
    clusters = ClusterMeans.of(rows, labels, rows[:, 0].astype(np.float64), metric)  # type: ignore[arg-type]
    clusters.merge(np.array([[0, 3], [1, 2]]))
    labels[labels == 3], labels[labels == 2] = 0, 1
    clusters.merge(np.array([[0, 5]]))
    labels[labels == 5] = 0
    pairs = np.array([[0, 1], [0, 4], [6, 1], [7, 4]])
    every = metric.distances(rows, rows)  # type: ignore[attr-defined]
    expected = [every[np.ix_(labels == a, labels == b)].mean() for a, b in pairs]
    assert clusters.distances(pairs) == pytest.approx(expected, abs=1e-5)
    assert clusters.counts[[0, 1]].tolist() == [(labels == 0).sum(), (labels == 1).sum()]
    assert clusters.levels[0] == pytest.approx(rows[labels == 0, 0].mean(), abs=1e-6)


@pytest.mark.parametrize("noise", [1e-6, 0.03, 0.06])
def test_faces_of_one_moment_are_merged_many_at_once(noise: float) -> None:
    """Merged in the order of their distances, they would take as many rounds as there are faces."""
    known, who = make_people(100, 4, noise=0.1)
    moment, _ = make_people(1, 1_000, noise=noise)
    rows, calibration = np.concatenate([known, moment]), calibrate(known, who)
    index, ids = indexes.build(np.arange(len(rows)), rows, EUCLIDEAN), np.arange(len(rows))
    links = find_links(index, ids, ids, find_link_distance(calibration))
    calls: list[tuple[int, int]] = []
    found = discover_people(rows, links, EUCLIDEAN, calibration, progress=lambda *call: calls.append(call))
    assert len(np.unique(found.labels[len(known) :])) == 1
    assert len(calls) < len(moment) / 10
    done = [done for done, _ in calls]
    assert done == sorted(done)
    assert (done[-1], done.count(done[-1])) == (calls[-1][1], 1)
    assert len(set(done)) > len(done) / 2, "it moves from round to round"


def test_merging_equals_agglomerative_clustering_where_all_faces_are_linked() -> None:
    rows, who = make_people(12, 7, noise=0.5)
    calibration = calibrate(rows, who)
    clusters = ClusterMeans.of(rows, np.arange(len(rows)), np.zeros(len(rows)), EUCLIDEAN)
    links = np.stack(np.triu_indices(len(rows), 1), axis=1)
    rule = MergeRule(calibration, 0.0, 1.0, 1.0)
    nobody = np.zeros(len(rows), np.bool_)
    merged = merge_clusters(clusters, links, rule, cannot_link=NO_PAIRS, is_named=nobody)
    tree = scipy.cluster.hierarchy.linkage(pdist(rows.astype(np.float64), "sqeuclidean"), "average")
    limit = (calibration.intercept - 1.0) / calibration.slope
    theirs = scipy.cluster.hierarchy.fcluster(tree, limit, "distance")
    assert 12 <= len(np.unique(theirs)) < len(rows) / 2
    assert adjusted_rand_score(theirs, merged.owner) == 1


def test_people_are_found_and_a_chain_of_near_faces_does_not_join_two() -> None:
    rows, who = make_people(40, 6)
    calibration = calibrate(rows, who)
    assert adjusted_rand_score(who, discover(rows, calibration).labels) > 0.99
    ends = rows[[np.flatnonzero(who == 0)[0], np.flatnonzero(who == 1)[0]]]
    steps = np.linspace(0.1, 0.9, 9)[:, None].astype(np.float32)
    chain = (1 - steps) * ends[0] + steps * ends[1]
    chain /= np.linalg.norm(chain, axis=1, keepdims=True)
    labels = discover(np.concatenate([rows, chain]), calibration).labels
    assert not set(labels[:240][who == 0]) & set(labels[:240][who == 1])


def test_clusters_are_numbered_by_their_first_face_and_carry_their_weakest_probability() -> None:
    rows, who = make_people(20, 3)
    found = discover(rows, calibrate(rows, who))
    _, first = np.unique(found.labels, return_index=True)
    assert (np.diff(first) > 0).all()
    sizes = np.bincount(found.labels)
    assert (found.probabilities[sizes == 1] == 1).all()
    assert ((found.probabilities[sizes > 1] > 0.9) & (found.probabilities[sizes > 1] <= 1)).all()


def test_pairs_that_are_not_the_same_never_share_a_cluster_and_pairs_that_are_always_do() -> None:
    rows, who = make_people(30, 5)
    calibration, draw = calibrate(rows, who), np.random.default_rng(3)
    for _ in range(20):
        pairs = draw.integers(0, len(rows), (60, 2))
        same = pairs[who[pairs[:, 0]] == who[pairs[:, 1]]]
        apart = np.concatenate([same[same[:, 0] != same[:, 1]][:2], pairs[who[pairs[:, 0]] != who[pairs[:, 1]]][:9]])
        joined = pairs[who[pairs[:, 0]] != who[pairs[:, 1]]][9:15]
        known = KnownPeople(np.arange(150), np.zeros(150, np.bool_), PairConstraints(joined, apart))
        labels = discover(rows, calibration, known).labels
        assert (labels[apart[:, 0]] != labels[apart[:, 1]]).all()
        left_out = apply_constraints(np.arange(150), known.constraints)[2]
        assert (labels[joined[~left_out, 0]] == labels[joined[~left_out, 1]]).all()


def test_of_links_that_contradict_each_other_the_last_one_is_left_out() -> None:
    constraints = PairConstraints(np.array([[0, 1], [1, 2], [2, 3]]), np.array([[0, 2], [4, 4]]))
    labels, cannot_link, left_out = apply_constraints(np.arange(5), constraints)
    assert left_out.tolist() == [False, True, False]
    assert labels.tolist() == [0, 0, 1, 1, 2]
    assert cannot_link.tolist() == [[0, 1]]


def test_a_ban_follows_the_faces_that_are_joined() -> None:
    constraints = PairConstraints(np.array([[1, 0], [3, 2], [0, 2], [4, 3], [4, 1]]), np.array([[1, 3]]))
    assert apply_constraints(np.arange(5), constraints)[2].tolist() == [False, False, True, False, True]


def test_named_people_stay_apart_and_take_up_their_faces() -> None:
    rows, who = make_people(10, 6)
    start = np.arange(len(rows))
    named = np.flatnonzero(who < 2)
    first, second = named[who[named] == 0], named[who[named] == 1]
    start[first[:3]], start[first[3:5]], start[second[:4]] = 1000, 2000, 3000  # person 0 is enrolled twice
    is_named = start >= 1000
    labels = discover(rows, calibrate(rows, who), KnownPeople(start, is_named)).labels
    assert len({labels[first[0]], labels[first[3]], labels[second[0]]}) == 3
    assert labels[first[5]] in (labels[first[0]], labels[first[3]])
    assert set(labels[second[4:]]) == {labels[second[0]]}


def test_new_faces_join_earlier_clusters_or_open_their_own_and_leave_the_rest_alone() -> None:
    rows, who = make_people(60, 5)
    calibration = calibrate(rows, who)
    old = who < 50
    old[np.flatnonzero(who < 25)[::5]] = False
    order = np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])
    rows, who, count = rows[order], who[order], int(old.sum())
    before = discover(rows[:count], calibration).labels
    start = np.concatenate([before, before.max() + 1 + np.arange(len(rows) - count)])
    known = KnownPeople(start, np.zeros(len(rows), np.bool_))
    after = discover(rows, calibration, known, sources=np.arange(count, len(rows))).labels
    assert adjusted_rand_score(who, after) > 0.99
    untouched = ~np.isin(who[:count], who[count:])
    assert (after[:count][untouched] == before[untouched]).all()


def test_links_are_the_near_pairs_of_the_whole_gallery() -> None:
    rows, _ = make_people(8, 6)
    ids = np.sort(np.random.default_rng(0).permutation(500)[:48])
    index = indexes.build(ids, rows, EUCLIDEAN)
    every = squareform(pdist(rows.astype(np.float64), "sqeuclidean"))
    expected = np.argwhere(np.triu(every <= 0.9, 1))
    assert len(expected)
    calls: list[tuple[int, int]] = []
    found = find_links(index, ids, np.arange(48), 0.9, neighbours=47, progress=lambda *call: calls.append(call))
    assert found.tolist() == expected.tolist()
    assert calls == [(48, 48)]
    some = find_links(index, ids, np.array([5]), 0.9, neighbours=47)
    assert some.tolist() == expected[(expected == 5).any(axis=1)].tolist()


def test_faces_of_a_dense_kind_must_be_nearer_to_each_other() -> None:
    draw = np.random.default_rng(0)
    wide, dense = draw.normal(size=(150, 32)), draw.normal(size=32) + 0.3 * draw.normal(size=(150, 32))
    rows = np.concatenate([wide, dense]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ids = np.arange(300)
    levels = StrangerLevels.measure(rows, draw_cohort(ids, draw), ids, EUCLIDEAN)
    assert levels.levels[150:].max() < levels.typical < levels.levels[:150].min()
    limit = float(np.quantile(pdist(rows[150:], "sqeuclidean"), 0.3))
    calibration = Calibration(30.0, 4.25 + 30 * limit, ImpostorDistances.of(np.ones(9)))
    links = find_links(indexes.build(ids, rows, EUCLIDEAN), ids, ids, 1.0)
    merged = discover_people(rows, links, EUCLIDEAN, calibration).labels
    clusters = ClusterMeans.of(rows, ids, np.zeros(300), EUCLIDEAN)
    plain = merge_clusters(
        clusters, links, MergeRule(calibration, 0.0, 4.25, 2.5), cannot_link=NO_PAIRS, is_named=np.zeros(300, np.bool_)
    )
    assert len(np.unique(plain.owner)) < 250
    assert len(np.unique(merged)) > 290


def test_the_cohort_has_one_face_of_each_cluster() -> None:
    labels = np.array([4, 4, 4, 4, 9, 2, 2])
    cohort = draw_cohort(labels, np.random.default_rng(0))
    assert sorted(labels[cohort]) == [2, 4, 9]
    assert len(draw_cohort(np.arange(9000), np.random.default_rng(0))) == 3000


def test_few_faces_and_no_faces() -> None:
    rows, who = make_people(40, 4, noise=0.05)
    calibration = calibrate(rows, who)
    nothing = discover_people(rows[:0], NO_PAIRS, EUCLIDEAN, calibration)
    assert nothing.labels.tolist() == []
    assert discover(rows[:1], calibration).labels.tolist() == [0]
    pair = np.flatnonzero(who == who[0])[:2]
    assert discover(rows[pair], calibration).labels.tolist() == [0, 0]


def test_wrong_input_is_refused() -> None:
    rows, who = make_people(40, 2)
    calibration = calibrate(rows, who)
    with pytest.raises(WrongShape, match="start"):
        discover_people(rows, NO_PAIRS, EUCLIDEAN, calibration, KnownPeople.nobody(3))
    with pytest.raises(WrongShape, match="min_probability"):
        discover_people(rows, NO_PAIRS, EUCLIDEAN, calibration, min_probability=1.0)


def test_the_search_is_stopped_where_its_progress_is_reported() -> None:
    rows, who = make_people(20, 3)

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        discover_people(rows, NO_PAIRS, EUCLIDEAN, calibrate(rows, who), progress=stop)
