"""The comparison of open-set rules, on drawn people."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.open_set_pages import MARKER, write
from benchmarks.open_set_rules import judge, summarise
from benchmarks.open_set_scores import ADOPTED, order_threshold, score, tail_threshold
from benchmarks.open_set_sizes import SIZES
from benchmarks.open_set_trial import (
    OpenSetTrial,
    SearchSet,
    TrialGallery,
    TrialSizes,
    draw_trial,
    one_face_each_first,
    person_distances,
)

DIM = 12
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def draw(people: int = 80, shots: int = 4, seed: int = 0, plan: TrialSizes | None = None) -> OpenSetTrial:
    rng = np.random.default_rng(seed)
    rows = np.repeat(rng.normal(size=(people, DIM)), shots, axis=0) + 0.2 * rng.normal(size=(people * shots, DIM))
    strangers = rng.normal(size=(200, DIM))
    plan = plan or TrialSizes(people=50, queries=20, strangers=25, distractors=40, searches=120)
    unit = [(x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (rows, strangers)]
    return draw_trial(unit[0], np.repeat(np.arange(people), shots), unit[1], plan, seed)


def test_a_draw_enrols_nobody_who_is_a_stranger_and_no_query() -> None:
    trial = draw()
    enrolled = {row.tobytes() for row in trial.gallery.rows}
    for searches in (trial.queries, trial.strangers, trial.distractors):
        assert not enrolled & {row.tobytes() for row in searches.rows}
    assert (len(trial.gallery.counts), len(trial.queries.rows), len(trial.strangers.rows)) == (50, 20, 25)
    assert trial.gallery.counts.min() >= 3


def test_with_everybody_all_but_the_strangers_are_enrolled() -> None:
    trial = draw(plan=TrialSizes(people=50, queries=20, strangers=10, distractors=40, searches=120, everybody=True))
    assert len(trial.gallery.counts) == 70


def test_one_face_of_each_person_searches_before_a_second_one() -> None:
    owners = np.repeat(np.arange(5), [1, 2, 3, 4, 5])
    order = one_face_each_first(owners, np.random.default_rng(0))
    assert sorted(order) == list(range(15))
    assert sorted(owners[order[:5]]) == [0, 1, 2, 3, 4]
    assert sorted(owners[order[5:9]]) == [1, 2, 3, 4]


def test_a_hidden_person_is_never_found() -> None:
    trial = draw()
    [distances] = person_distances(trial.gallery, trial.left_out)
    assert trial.left_out.hidden is not None
    for part in vars(distances).values():
        assert np.isinf(part[np.arange(len(part)), trial.left_out.hidden]).all()
    assert (score(trial, trial.left_out, None)[ADOPTED].people != trial.left_out.hidden).all()


def test_distances_to_people_are_those_computed_face_by_face() -> None:
    trial = draw()
    query, person = trial.queries.rows[3].astype(np.float64), 7
    own = trial.gallery.rows[trial.gallery.owners == person].astype(np.float64)
    face_distances = ((own - query) ** 2).sum(1)
    [distances] = person_distances(trial.gallery, SearchSet(trial.queries.rows))
    mean = own.mean(0)
    expected = (face_distances.min(), np.sort(face_distances)[:2].mean(), ((query - mean) ** 2).sum(),
                2 - 2 * query @ mean / np.linalg.norm(mean), face_distances.mean())  # fmt: skip
    computed = [part[3, person] for part in vars(distances).values()]
    assert computed == pytest.approx(expected, abs=1e-5)


def test_the_spread_within_people_is_pooled_over_those_with_several_faces() -> None:
    rows = np.array([[0.0, 1.0], [0.0, 3.0], [5.0, 5.0]], np.float32)
    assert TrialGallery(rows, np.array([0, 0, 1])).within_variance == pytest.approx(2.0)


def test_the_order_threshold_names_no_more_than_asked_for() -> None:
    scores = np.random.default_rng(0).permutation(1000).astype(np.float64)
    assert order_threshold(scores, 0.01) == 9
    assert order_threshold(scores, 0.0005) == -np.inf


def test_the_tail_threshold_finds_the_quantile_of_an_exponential_tail() -> None:
    scores = 5 - np.random.default_rng(0).exponential(size=20_000)
    assert tail_threshold(scores, 0.01) == pytest.approx(5 + np.log(0.01), abs=0.15)


def test_people_enrolled_twice_move_the_order_threshold_and_not_the_tail_fit() -> None:
    rng = np.random.default_rng(0)
    clean = 5 - rng.exponential(size=2000)
    twice = clean.copy()
    twice[:20] = -20.0
    assert order_threshold(clean, 0.01) - order_threshold(twice, 0.01) > 10
    assert tail_threshold(clean, 0.01) - tail_threshold(twice, 0.01) < 0.6


def test_every_rule_is_judged_and_written() -> None:
    judged = [dict(judge(draw(seed=seed), seed)) for seed in (0, 1)]
    result = summarise(judged)
    assert result["rules"][ADOPTED]["right_first"]["mean"] > 0.9
    assert result["rules"]["nearest face, margin 0"]["faces"]["mean"] > 150
    for rule, figures in result["rules"].items():
        assert 0 <= figures["named_rightly"]["mean"] <= 1, rule
        assert 0 <= figures["strangers_named"]["mean"] <= 1, rule
    page = write({"drawn": result}, ADOPTED)
    assert f"**{ADOPTED}**" in page
    assert "tail fit of 100 searches" in page


def test_gallery_sizes_are_written_as_a_square_table() -> None:
    sizes = {f"{a} -> {b}": {"strangers": 0.01, "distractors": 0.02} for a in SIZES for b in SIZES}
    sizes |= {f"pairs, {a}": {"distractors": 0.005} for a in SIZES}
    page = write({"drawn, sizes": {"seeds": 2, "sizes": sizes}}, ADOPTED)
    assert page.count("1.00 / 2.00") == len(SIZES) ** 2


def test_the_committed_page_holds_the_tables_of_the_committed_figures() -> None:
    results = json.loads((RESULTS / "openset.json").read_text())
    page = (RESULTS / "openset.md").read_text()
    assert page.split(MARKER)[1].strip() == write(results, ADOPTED).strip()
