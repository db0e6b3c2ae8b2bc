"""The tables of 003 on a small set of synthetic people: every kind of computation, and the meaning of the figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.evaluation.report import rank_protocol, summarise
from ml.indexes.ivf import IvfIndex
from papers.clml.cells import SortedGallery, kept
from papers.clml.chapter import START, chapter
from papers.clml.distractors import make_fewer_distractors_computation
from papers.clml.fits import ClmlFits, Options, Sizes
from papers.clml.goals import describe_goal
from papers.clml.option_choice import Choices, OptionGrid
from papers.clml.person_map import neighbours, on_plane
from papers.clml.search_speed import vectors
from papers.clml.table_rows import make_retrieval_row
from papers.clml.verification import verification
from papers.harness import page_writer, runner
from papers.harness.feature_view import FeatureView, view_features
from papers.harness.result_store import ResultStore
from papers.harness.results import Queries, figure
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Figure, Scope
from tests.papers import synthetic_data

LDML = {"steps": 10, "groups": 8, "others": 8}
FAST = {case: Options(LDML, {"first": 10}, 2) for case in START}
SMALL = Sizes((4, 16), 50_000, 100)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    return synthetic_data.context(synthetic_data.write(tmp_path_factory.mktemp("data") / "data"))


@pytest.fixture(scope="module")
def told(context: RunContext, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All tables by name, as their JSON has them, and the page."""
    made, out = chapter(context, FAST, SMALL), tmp_path_factory.mktemp("out")
    runner.compute_missing([made], context.store)
    command = "likeness reproduce clml --quick"
    page = page_writer.write_chapter(out, made.name, made.title, command, made.tables(), context.store, quick=True)
    tables = json.loads((out / "clml.json").read_text())["tables"]
    return {t["name"]: t for t in tables} | {"page": page.read_text(), "out": out}


def rows_of(table: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in table["rows"]}


def test_every_table_is_there_and_names_no_one(told: dict[str, Any]) -> None:
    drawn = {"clml-figure-2", "clml-figure-3", "clml-figure-4", "clml-figure-5", "clml-figure-6"}
    assert {p.stem for p in Path(told["out"]).glob("*.svg")} == drawn
    wanted = {"goals", "figure-5-speed", "never-seen", *(f"table-{n}" for n in (1, 2, 3))}
    wanted |= {f"figure-{n}" for n in range(2, 7)}
    assert told.keys() >= wanted
    assert "P00" not in told["page"]
    assert "**A quick look:**" in told["page"]
    assert all(row["commits"] for name in wanted for row in told[name]["rows"] if row["works"]["count"])


def test_a_row_is_what_the_protocol_says_of_its_embeddings(context: RunContext, told: dict[str, Any]) -> None:
    [computation] = ClmlFits(context, FAST).clml("lbp", 16)
    ranked = rank_protocol(context.result(computation).arrays["lfw"], context.protocol("queries-0"))
    report = summarise([ranked], protocol="queries-0")
    row = rows_of(told["table-2"])["LBP, CLML, k = 16"]
    assert row["figures"]["mAP"]["value"] == pytest.approx(100 * report.mean_average_precision.value)
    assert row["paper"] == {"mAP": 49.0}
    assert row["works"]["options"]["k"] == 16


def test_fewer_distractors_are_some_of_all(context: RunContext) -> None:
    [computation] = ClmlFits(context, FAST).ldml("lbp")
    context.store.do(computation)
    found = context.store.do(make_fewer_distractors_computation(context, computation))
    assert found.record["all"] == synthetic_data.STRANGERS
    means = [figure([found], "mAP", f"crowd{size}").value for size in found.record["sizes"]]
    assert figure([context.result(computation)], "mAP").value >= max(means)
    assert min(means) >= figure([context.result(computation)], "mAP", "crowd").value


def test_cells_find_what_the_index_finds(context: RunContext) -> None:
    rows = np.random.default_rng(0).normal(size=(112, 8)).astype(np.float32)
    asked = context.protocol("queries-0")
    search = SortedGallery.of(rows, asked)
    index = IvfIndex(8, p=4, device="cpu").train(rows[search.gallery])
    index.add(search.gallery, rows[search.gallery])
    near, member = search.means(rows, 4)
    points, precisions = search.curve(near, member)
    assert [m for m, _ in points] == [1, 2, 4]
    for (m, fraction), precision in zip(points, precisions, strict=True):
        found = index.search(rows[asked.queries], len(search.gallery), m=int(m))
        assert fraction == pytest.approx(found.fraction.mean())
        people = np.append(asked.people, np.full(len(rows) - len(asked.people) + 1, -2))
        hit = people[found.ids] == asked.people[asked.queries][:, None]
        expected = (np.cumsum(hit, 1) * hit / np.arange(1, hit.shape[1] + 1)).sum(1) / search.relevant.sum(1)
        assert precision == pytest.approx(expected)


def test_the_cheapest_point_is_the_first_from_which_nothing_is_lost() -> None:
    assert kept(np.array([0.1, 0.496, 0.2, 0.496, 0.5])) == 3
    assert kept(np.array([0.5, 0.5])) == 0


def test_drawn_vectors_are_like_those_they_stand_for() -> None:
    draw = np.random.default_rng(0)
    rows = np.concatenate([draw.normal(c, 0.1, (300, 4)) for c in (-1, 1)]).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    made = vectors(unit, 2000, 1)
    assert np.linalg.norm(made, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert made.mean(0) == pytest.approx(unit.mean(0), abs=0.1)
    assert np.abs(made).mean(0) == pytest.approx(np.abs(unit).mean(0), abs=0.02)


def test_options_are_taken_by_the_best_figure_and_then_frozen(context: RunContext) -> None:
    case = ("lbp", "queries")
    grid = OptionGrid([LDML, {**LDML, "ridge": 10.0}], [{"first": 10}], (2, 3))
    choices = Choices(RunContext(context.photos, context.store, Scope(2, 1)), {case: grid}, FAST)
    seen_computations: list[int] = []
    while not choices.of(case).done:
        computations = [
            computation for _, _, computation in choices.of(case).tried if not context.store.has(computation)
        ]
        seen_computations.append(len(computations))
        context.store.do(computations[0])
    found = choices.of(case)
    assert seen_computations[0] == 2
    means = {o.k: np.nanmean(Queries.of(context.result(w)).values("mAP")) for n, o, w in found.tried if n == "k"}
    assert found.options.k == max(means, key=lambda k: means[k])
    assert {w.key["protocol"] for _, _, w in found.tried} == {"inner-queries-0"}
    table = choices.table()
    assert sum(row.cause == "taken" for row in table.rows) == 3
    assert len(table.rows) == 5


def test_candidates_that_are_the_same_fit_are_tried_once(context: RunContext, tmp_path: Path) -> None:
    case, clml = ("lbp", "queries"), [{"first": 10}, {"first": 10, "spherical": 0.0}]
    for ldml, count in ((LDML, 1), ({**LDML, "spherical": 0.7}, 2)):
        choices = Choices(
            RunContext(context.photos, ResultStore(tmp_path / str(count)), Scope(2, 1)),
            {case: OptionGrid([ldml], clml, (2,))},
            FAST,
        )
        choices.context.store.do(choices.computations()[0])
        tried = [o.clml for name, o, _ in choices.of(case).tried if name == "clml"]
        assert tried == clml[:count]


def test_without_the_network_nothing_is_asked_of_it(context: RunContext, tmp_path: Path) -> None:
    made = chapter(RunContext(context.photos, ResultStore(tmp_path), Scope(2, 1)), FAST, SMALL)
    asked = [*made.computations(), *made.guessed()]
    assert {"lbp", "fisher"} <= {w.key.get("features") for w in asked}
    assert not [w.name for w in asked if "mobilefacenet" in str(w.key)]


@pytest.mark.parametrize(("more", "held"), [({}, True), ({"shrink": 0.0}, False)])
def test_a_regulariser_is_a_cause_where_there_is_one(context: RunContext, more: dict[str, float], held: bool) -> None:
    fits = ClmlFits(context, FAST)
    computations = fits.computations(Method("ldml", 32, {**LDML, **more}), "lbp")
    for computation in (*computations, *fits.l2("lbp")):
        context.store.do(computation)
    cause = make_retrieval_row(fits, "lbp", "LDML", computations, {"mAP": 200.0}).cause
    assert "it is the learning" in cause
    assert ("regulariser" in cause) is held


def test_inner_splits_hold_no_query(context: RunContext) -> None:
    for outer_name in ("queries-0", "disjoint-0"):
        outer, inner = context.protocol(outer_name), context.protocol(f"inner-{outer_name}")
        own = np.concatenate([inner.queries, inner.gallery, inner.training])
        assert np.isin(own, outer.training).all()
        assert not np.isin(inner.queries, np.concatenate([inner.gallery, inner.training])).any()
    strangers = context.protocol("inner-disjoint-0")
    assert not np.isin(strangers.people[strangers.queries], strangers.people[strangers.training]).any()


def test_within_the_axes_a_fit_is_what_it_is_outside(context: RunContext) -> None:
    asked, method = context.protocol("queries-0"), Method("clml", 8, {**LDML, "first": 10, "k": 2})
    inside, whole = (
        view_features(context.photos, "lbp", asked.training, method.build()),
        FeatureView(context.photos, "lbp"),
    )
    fits = [method.build().fit(context.identities("lbp", asked, view)) for view in (inside, whole)]
    a, b = (fit.embed(view.rows("lfw")) for fit, view in zip(fits, (inside, whole), strict=True))
    assert a @ a.T == pytest.approx(b @ b.T, abs=0.02)
    numbers = [view.numbers(fit.learned) for fit, view in zip(fits, (inside, whole), strict=True)]
    assert numbers[0] == numbers[1]
    assert view_features(context.photos, "lbp", asked.training, Method("l2").build()).axes is None


def test_verification_reads_all_folds(context: RunContext) -> None:
    part = verification(ClmlFits(context, FAST))
    for computation in part.computations:
        context.store.do(computation)
    [row] = part.table().rows
    assert (len(part.computations), row.figures["accuracy"].draws) == (10, 10)


def test_points_on_the_plane() -> None:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(5), 20)
    rows = (draw.normal(size=(5, 6))[people] * [9, 9, 1, 1, 1, 1] + draw.normal(size=(100, 6)) * 0.1).astype(np.float32)
    places, share = on_plane(rows)
    assert places.shape == (100, 2)
    assert 0.9 < share < 1
    assert neighbours(places, people) > 0.95
    assert neighbours(places, draw.permutation(people)) < 0.5


def test_a_goal_is_reached_or_missed_by_so_much() -> None:
    found = {"mAP": Figure(50.0), "1@10": Figure(72.0)}
    assert describe_goal(found, {"mAP": 51, "1@10": 71}, "at least") == "at least 51 mAP, 71 1@10: missed, mAP by 1.0"
    assert describe_goal(found, {"mAP": 50}, "at least").endswith("reached")
    assert describe_goal(found, {}, "stretch") == ""
    assert describe_goal({"accuracy": Figure(100 * np.mean([0.923] * 10))}, {"accuracy": 92.3}, "at least").endswith(
        "reached"
    )
    assert describe_goal({"accuracy": Figure(92.29)}, {"accuracy": 92.3}, "at least").endswith(
        "missed, accuracy by 0.0"
    )
