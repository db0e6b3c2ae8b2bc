from dataclasses import replace

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.metrics import average_precision_score

from ml.distances import EUCLIDEAN, INNER_PRODUCT
from ml.errors import WrongShape
from ml.evaluation.intervals import bootstrap_mean, over_draws, paired_difference
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol, summarise
from ml.evaluation.retrieval import (
    MIN_RELEVANT_TO_SORT,
    Faces,
    Ranked,
    average_precision,
    average_precisions,
    cmc,
    n_call,
    nearest_error,
    rank,
    ranks_of,
)


def faces(rows: object, values: object, first_id: int = 0) -> Faces:
    made = np.array(rows, np.float32)
    return Faces(made, np.array(values, np.float64), first_id + np.arange(len(made)))


def on_a_line(query: float, places: list[float], values: list[float], value: float = 1) -> Ranked:
    return rank(faces([[query]], [value], 100), faces([[p] for p in places], values))


@pytest.fixture
def crowd() -> tuple[Faces, Faces]:
    draw = np.random.default_rng(7)
    gallery = faces(draw.normal(size=(600, 8)), draw.integers(0, 20, 600))
    return faces(draw.normal(size=(40, 8)), draw.integers(0, 20, 40), 1000), gallery


def test_average_precision_by_hand() -> None:
    assert average_precision(np.array([1, 3])) == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert average_precision(np.array([1, 2, 3])) == 1
    assert np.isnan(average_precision(np.empty(0, np.int64)))


def test_ranks_calls_and_cmc_by_hand() -> None:
    ranked = on_a_line(0, [5, 1, 3, 2], [1, 2, 1, 2])
    assert ranked.ranks[0].tolist() == [3, 4]
    assert [n_call(ranked, k)[0] for k in (1, 2, 3, 4)] == [0, 0, 1, 1]
    assert [n_call(ranked, k, n=2)[0] for k in (3, 4)] == [0, 1]
    assert cmc(ranked, 4).tolist() == [0, 0, 1, 1]
    assert (ranked.mate[0], ranked.stranger[0]) == (9, 1)


def test_of_equal_distances_the_smaller_id_is_first() -> None:
    assert on_a_line(0, [2, 2, 2], [2, 1, 2]).ranks[0].tolist() == [2]
    shuffled = Faces(np.full((3, 1), 2, np.float32), np.array([1.0, 2, 2]), np.array([9, 4, 5]))
    assert rank(faces([[0]], [1], 100), shuffled).ranks[0].tolist() == [3]


def test_a_face_is_never_ranked_for_itself() -> None:
    gallery = faces([[0], [1], [2]], [1, 2, 1])
    ranked = rank(gallery, gallery)
    assert [r.tolist() for r in ranked.ranks] == [[2], [], [2]]
    assert ranked.mated.tolist() == [True, False, True]
    assert ranked.gallery == 2


def test_distractors_count_as_negatives_and_never_as_relevant() -> None:
    ranked = on_a_line(0, [1, 2], [np.nan, 1])
    assert ranked.ranks[0].tolist() == [2]
    assert on_a_line(0, [1, 2], [np.nan, np.nan], value=np.nan).ranks[0].tolist() == []


def test_a_tolerance_makes_near_values_relevant() -> None:
    ranked = rank(faces([[0]], [30], 9), faces([[1], [2], [3]], [36, 33, 27]), tolerance=3)
    assert ranked.ranks[0].tolist() == [2, 3]


def test_average_precision_agrees_with_scikit_learn_on_every_query(crowd: tuple[Faces, Faces]) -> None:
    queries, gallery = crowd
    measured = average_precisions(rank(queries, gallery))
    d = EUCLIDEAN.distances(queries.rows, gallery.rows)
    for q, value in enumerate(queries.values):
        assert measured[q] == pytest.approx(average_precision_score(gallery.values == value, -d[q]), rel=1e-12)


def test_an_inner_product_ranks_the_largest_first() -> None:
    ranked = rank(faces([[1]], [1], 9), faces([[3], [5], [4]], [1, 2, 2]), metric=INNER_PRODUCT)
    assert ranked.ranks[0].tolist() == [3]
    assert ranked.mate[0] == -3


@pytest.mark.parametrize("relevant", [MIN_RELEVANT_TO_SORT - 1, MIN_RELEVANT_TO_SORT + 1])
def test_counting_and_sorting_give_the_same_ranks(relevant: int) -> None:
    draw = np.random.default_rng(relevant)
    distances = draw.integers(0, 50, 500).astype(np.float32)
    places = draw.choice(500, relevant, replace=False)
    slow = np.lexsort((np.arange(500), distances))
    assert ranks_of(distances, places).tolist() == sorted(int(np.flatnonzero(slow == p)[0]) + 1 for p in places)


def test_a_query_is_ranked_the_same_alone_and_in_a_batch(crowd: tuple[Faces, Faces]) -> None:
    whole = rank(*crowd)
    alone = [rank(Faces(*(part[q : q + 1] for part in vars(crowd[0]).values())), crowd[1]) for q in range(40)]
    assert [r.tolist() for r in whole.ranks] == [one.ranks[0].tolist() for one in alone]


def test_equal_faces_tie_exactly_in_any_place() -> None:
    face = np.random.default_rng(1).normal(size=(1, 33)).astype(np.float32)
    distances = EUCLIDEAN.distances(np.ones((1, 33), np.float32), np.repeat(face, 1003, 0))
    assert len(np.unique(distances)) == 1


@pytest.mark.parametrize("width", [1, 33, 512, 9860])
def test_copies_of_the_query_are_at_distance_zero(width: int) -> None:
    face = np.random.default_rng(width).normal(size=(1, width)).astype(np.float32)
    assert not EUCLIDEAN.distances(face, np.repeat(face, 101, 0)).any()
    distance = EUCLIDEAN.distances(face, face * np.float32(1 + 1e-5))[0, 0]
    assert distance == pytest.approx(1e-10 * float((face**2).sum()), rel=0.1), "a photo that is nearly the same is not"


def test_impostors_are_drawn_the_same_way_twice(crowd: tuple[Faces, Faces]) -> None:
    first, second = rank(*crowd, impostors=10), rank(*crowd, impostors=10)
    assert len(first.impostor) == 400
    assert np.array_equal(first.impostor, second.impostor)


def test_the_ids_of_impostors_are_those_of_the_faces_compared(crowd: tuple[Faces, Faces]) -> None:
    queries, gallery = crowd
    ranking = rank(queries, gallery, impostors=10)
    first, second = np.repeat(np.arange(len(queries.ids)), ranking.sampled), ranking.impostor_ids
    order = np.argsort(gallery.ids)
    places = order[np.searchsorted(gallery.ids[order], second)]
    distances = EUCLIDEAN.paired_distances(queries.rows[first], gallery.rows[places])
    np.testing.assert_allclose(distances, ranking.impostor, rtol=1e-5, atol=1e-6)
    assert (queries.values[first] != gallery.values[places]).all()


def test_other_widths_are_refused() -> None:
    with pytest.raises(WrongShape, match=r"\(Q, 2\)"):
        rank(faces([[0]], [1]), faces([[0, 1]], [1]))


def test_no_query_gives_no_figures() -> None:
    ranked = rank(Faces(np.empty((0, 1), np.float32), np.empty(0), np.empty(0, np.int64)), faces([[0]], [1]))
    assert ranked.ranks == ()
    assert np.isnan(cmc(ranked, 3)).all()


def test_a_bootstrap_interval_holds_the_mean_and_shrinks_with_more_queries() -> None:
    few, many = (bootstrap_mean(np.tile([0.0, 1.0], n)) for n in (20, 2000))
    assert few.low < few.value == many.value < few.high
    assert many.high - many.low < (few.high - few.low) / 5


def test_people_are_resampled_whole() -> None:
    values, people = np.repeat([0.0, 1.0] * 10, 50), np.repeat(np.arange(20.0), 50)
    alone, together = bootstrap_mean(values), bootstrap_mean(values, people)
    assert together.high - together.low > 5 * (alone.high - alone.low)


def test_a_paired_difference_has_a_narrower_interval_than_two_separate_figures() -> None:
    draw = np.random.default_rng(2)
    hard = draw.random(400)
    a, b = hard + 0.02 + 0.01 * draw.normal(size=400), hard
    difference, interval = paired_difference(a, b), bootstrap_mean(a)
    assert difference.low > 0.01
    assert difference.high - difference.low < (interval.high - interval.low) / 5


def test_queries_with_nothing_to_find_are_left_out() -> None:
    assert bootstrap_mean(np.array([1.0, np.nan, 1.0])).value == 1
    assert np.isnan(bootstrap_mean(np.array([np.nan])).value)


def test_an_interval_over_draws_is_students_t_interval() -> None:
    interval = over_draws(np.array([1.0, 2.0, 3.0]))
    assert interval.value == 2
    assert interval.high - 2 == pytest.approx(4.302652 / 3**0.5, rel=1e-5)
    assert over_draws(np.array([1.0])).low == 1


def test_recall_at_k_rises_with_k_and_is_pytorch_metric_learnings_at_one() -> None:
    """001's Recall@K: every face searches among all others. PML has it for K = 1 alone."""
    draw = np.random.default_rng(8)
    people = np.repeat(np.arange(30), 5)
    rows = (draw.normal(size=(30, 6))[people] + draw.normal(size=(150, 6))).astype(np.float32)
    everybody = faces(rows, people)
    ranked = rank(everybody, everybody)
    recall = [n_call(ranked, k).mean() for k in range(1, 150)]
    assert recall == sorted(recall)
    assert recall[-1] == 1
    theirs = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision"),
        k=149,
        knn_func=CustomKNN(LpDistance(normalize_embeddings=False)),
        device=torch.device("cpu"),
    ).get_accuracy(rows, people, rows, people, ref_includes_query=True)
    assert recall[0] == pytest.approx(theirs["precision_at_1"])
    assert nearest_error(ranked).mean() == pytest.approx(1 - theirs["precision_at_1"])
    assert average_precisions(ranked).mean() == pytest.approx(theirs["mean_average_precision"], rel=1e-6)


def test_n_call_falls_as_n_rises(crowd: tuple[Faces, Faces]) -> None:
    ranked = rank(*crowd)
    means = [np.nanmean(n_call(ranked, 20, n)) for n in (1, 2, 3, 5)]
    assert means == sorted(means, reverse=True)
    assert means[0] > means[-1]


LFW = [*[5] * 112, *[7] * 153, *[13] * 96, *[31] * 52, 53, 55, 60, 71, 77, 109, 121, 144, 236, 530]
"""Photos of the 423 people of LFW with five or more, nearly: 112 have 5, 153 6 to 9, 96 10 to 19, 62 20 or more."""


def test_shuffled_names_give_chance_in_a_gallery_as_large_as_lfws() -> None:
    """423 queries among 12,810: 1-call@2, 5, 10, 20 of .20, .51, 1.00, 1.94 % (the specification's measured facts)."""
    draw = np.random.default_rng(12)
    known = np.repeat(np.arange(len(LFW)), LFW)
    people = np.concatenate([known, np.arange(len(LFW), len(LFW) + 13_233 - len(known))])
    rows = (draw.normal(size=(people.max() + 1, 4))[people] + 0.1 * draw.normal(size=(13_233, 4))).astype(np.float32)
    queries = np.unique(known, return_index=True)[1]
    gallery = np.setdiff1d(np.arange(13_233), queries)
    assert (len(queries), len(gallery)) == (423, 12_810)
    protocol = Protocol("p", people, gallery, queries, gallery)
    assert np.nanmean(n_call(rank_protocol(rows, protocol), 10)) > 0.9
    shuffles = [rank_protocol(rows, replace(protocol, people=shuffled(people, queries, draw))) for _ in range(4)]
    for k, chance in ((2, 0.0020), (5, 0.0051), (10, 0.0100), (20, 0.0194)):
        share = np.mean([np.nanmean(n_call(r, k)) for r in shuffles])
        assert share == pytest.approx(chance, abs=4 * (chance / (4 * 423)) ** 0.5)
    chances = summarise(shuffles[:1], protocol="p").chance_at_10
    assert chances == pytest.approx(0.0100, abs=0.0004)


def shuffled(people: np.ndarray, queries: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The gallery's names anew; each query keeps its own, so that it has as much to find."""
    names = people.copy()
    gallery = np.setdiff1d(np.arange(len(people)), queries)
    names[gallery] = draw.permutation(people[gallery])
    return names
