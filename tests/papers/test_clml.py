"""The tables of 003 on a small set of synthetic people: every kind of computation, and the meaning of the figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.evaluation.report import rank_protocol, summarise
from ml.indexes.ivf import IvfIndex
from papers.clml.cells import SortedGallery, find_first_within_loss
from papers.clml.chapter import START_OPTIONS, chapter
from papers.clml.distractors import make_fewer_distractors_computation
from papers.clml.fits import ClmlFits, Options, Sizes
from papers.clml.goals import describe_goal_outcome
from papers.clml.option_choice import Choices, OptionGrid
from papers.clml.person_map import neighbours, on_plane
from papers.clml.search_speed import vectors
from papers.clml.table_rows import make_retrieval_row
from papers.clml.verification import make_verification_table
from papers.harness import page_writer, runner
from papers.harness.feature_view import FeatureView, view_features
from papers.harness.result_store import ResultStore
from papers.harness.results import Queries, figure
from papers.harness.run_context import Method, RunContext
from papers.harness.table_types import Figure, Scope
from tests.papers import synthetic_data

LDML = {"steps": 10, "groups": 8, "others": 8}
FAST = {case: Options(LDML, {"first": 10}, 2) for case in START_OPTIONS}
SMALL = Sizes((4, 16), 50_000, 100)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    return synthetic_data.context(synthetic_data.write(tmp_path_factory.mktemp("data") / "data"))


@pytest.fixture(scope="module")
def content(context: RunContext, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return all tables by name, as in the JSON, and the page."""
    made, out = chapter(context, FAST, SMALL), tmp_path_factory.mktemp("out")
    runner.compute_missing([made], context.store)
    command = "likeness reproduce clml --quick"
    page = page_writer.write_chapter(out, made.name, made.title, command, made.tables(), context.store, quick=True)
    tables = json.loads((out / "clml.json").read_text())["tables"]
    return {t["name"]: t for t in tables} | {"page": page.read_text(), "out": out}


def rows_of(table: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in table["rows"]}


def test_the_page_has_every_table_and_no_persons_name(content: dict[str, Any]) -> None:
    plots = {"clml-figure-2", "clml-figure-3", "clml-figure-4", "clml-figure-5", "clml-figure-6"}
    assert {p.stem for p in Path(content["out"]).glob("*.svg")} == plots
    wanted = {"goals", "figure-5-speed", "never-seen", *(f"table-{n}" for n in (1, 2, 3))}
    wanted |= {f"figure-{n}" for n in range(2, 7)}
    assert content.keys() >= wanted
    assert "P00" not in content["page"]
    assert "**A quick look:**" in content["page"]
    assert all(row["commits"] for name in wanted for row in content[name]["rows"] if row["works"]["count"])


def test_a_row_equals_the_protocols_figures_for_its_embeddings(context: RunContext, content: dict[str, Any]) -> None:
    [computation] = ClmlFits(context, FAST).clml("lbp", 16)
    ranked = rank_protocol(context.result(computation).arrays["lfw"], context.protocol("queries-0"))
    report = summarise([ranked], protocol="queries-0")
    row = rows_of(content["table-2"])["LBP, CLML, k = 16"]
    assert row["figures"]["mAP"]["value"] == pytest.approx(100 * report.mean_average_precision.value)
    assert row["paper"] == {"mAP": 49.0}
    assert row["works"]["options"]["k"] == 16


def test_a_smaller_set_of_distractors_is_part_of_all_of_them(context: RunContext) -> None:
    [computation] = ClmlFits(context, FAST).ldml("lbp")
    context.store.do(computation)
    result = context.store.do(make_fewer_distractors_computation(context, computation))
    assert result.record["all"] == synthetic_data.STRANGERS
    means = [figure([result], "mAP", f"crowd{size}").value for size in result.record["sizes"]]
    assert figure([context.result(computation)], "mAP").value >= max(means)
    assert min(means) >= figure([context.result(computation)], "mAP", "crowd").value


def test_the_simulated_cells_find_the_same_as_the_index(context: RunContext) -> None:
    rows = np.random.default_rng(0).normal(size=(112, 8)).astype(np.float32)
    protocol = context.protocol("queries-0")
    search = SortedGallery.of(rows, protocol)
    index = IvfIndex(8, p=4, device="cpu").train(rows[search.gallery])
    index.add(search.gallery, rows[search.gallery])
    near, member = search.means(rows, 4)
    points, precisions = search.curve(near, member)
    assert [m for m, _ in points] == [1, 2, 4]
    for (m, fraction), precision in zip(points, precisions, strict=True):
        neighbours = index.search(rows[protocol.queries], len(search.gallery), m=int(m))
        assert fraction == pytest.approx(neighbours.fraction.mean())
        people = np.append(protocol.people, np.full(len(rows) - len(protocol.people) + 1, -2))
        hit = people[neighbours.ids] == protocol.people[protocol.queries][:, None]
        expected = (np.cumsum(hit, 1) * hit / np.arange(1, hit.shape[1] + 1)).sum(1) / search.relevant.sum(1)
        assert precision == pytest.approx(expected)


def test_the_cheapest_point_is_the_first_from_which_nothing_is_lost() -> None:
    assert find_first_within_loss(np.array([0.1, 0.496, 0.2, 0.496, 0.5])) == 3
    assert find_first_within_loss(np.array([0.5, 0.5])) == 0


def test_synthetic_vectors_have_the_distribution_of_the_embeddings() -> None:
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
    chosen = choices.of(case)
    assert seen_computations[0] == 2
    means = {o.k: np.nanmean(Queries.of(context.result(w)).values("mAP")) for n, o, w in chosen.tried if n == "k"}
    assert chosen.options.k == max(means, key=lambda k: means[k])
    assert {w.key["protocol"] for _, _, w in chosen.tried} == {"inner-queries-0"}
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


def test_without_the_network_no_computation_uses_it(context: RunContext, tmp_path: Path) -> None:
    made = chapter(RunContext(context.photos, ResultStore(tmp_path), Scope(2, 1)), FAST, SMALL)
    computations = [*made.computations(), *made.guessed()]
    assert {"lbp", "fisher"} <= {w.key.get("features") for w in computations}
    assert not [w.name for w in computations if "mobilefacenet" in str(w.key)]


@pytest.mark.parametrize(("more", "held"), [({}, True), ({"shrink": 0.0}, False)])
def test_a_regulariser_is_named_as_a_cause_only_if_one_was_used(
    context: RunContext, more: dict[str, float], held: bool
) -> None:
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


def test_a_fit_in_principal_axes_equals_a_fit_of_the_whole_rows(context: RunContext) -> None:
    protocol, method = context.protocol("queries-0"), Method("clml", 8, {**LDML, "first": 10, "k": 2})
    inside, whole = (
        view_features(context.photos, "lbp", protocol.training, method.build()),
        FeatureView(context.photos, "lbp"),
    )
    fits = [method.build().fit(context.identities("lbp", protocol, view)) for view in (inside, whole)]
    a, b = (fit.embed(view.rows("lfw")) for fit, view in zip(fits, (inside, whole), strict=True))
    assert a @ a.T == pytest.approx(b @ b.T, abs=0.02)
    numbers = [view.numbers(fit.learned) for fit, view in zip(fits, (inside, whole), strict=True)]
    assert numbers[0] == numbers[1]
    assert view_features(context.photos, "lbp", protocol.training, Method("l2").build()).axes is None


def test_verification_reads_all_folds(context: RunContext) -> None:
    part = make_verification_table(ClmlFits(context, FAST))
    for computation in part.computations:
        context.store.do(computation)
    [row] = part.table().rows
    assert (len(part.computations), row.figures["accuracy"].draws) == (10, 10)


def test_the_plane_keeps_variance_and_neighbours() -> None:
    draw = np.random.default_rng(0)
    people = np.repeat(np.arange(5), 20)
    rows = (draw.normal(size=(5, 6))[people] * [9, 9, 1, 1, 1, 1] + draw.normal(size=(100, 6)) * 0.1).astype(np.float32)
    places, share = on_plane(rows)
    assert places.shape == (100, 2)
    assert 0.9 < share < 1
    assert neighbours(places, people) > 0.95
    assert neighbours(places, draw.permutation(people)) < 0.5


def test_a_goal_states_whether_it_is_reached_and_the_shortfall() -> None:
    reached_figures = {"mAP": Figure(50.0), "1@10": Figure(72.0)}
    assert (
        describe_goal_outcome(reached_figures, {"mAP": 51, "1@10": 71}, "at least")
        == "at least 51 mAP, 71 1@10: missed, mAP by 1.0"
    )
    assert describe_goal_outcome(reached_figures, {"mAP": 50}, "at least").endswith("reached")
    assert describe_goal_outcome(reached_figures, {}, "stretch") == ""
    assert describe_goal_outcome(
        {"accuracy": Figure(100 * np.mean([0.923] * 10))}, {"accuracy": 92.3}, "at least"
    ).endswith("reached")
    assert describe_goal_outcome({"accuracy": Figure(92.29)}, {"accuracy": 92.3}, "at least").endswith(
        "missed, accuracy by 0.0"
    )
