"""CoSiM's tables on a small set of synthetic people, from computations to pages; no model saw its test fold."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from ml.evaluation.verification import best_threshold
from ml.types import Rows
from papers.cosim import chapter as cosim
from papers.cosim import system_catalogue
from papers.cosim.learning_curves import POINTS, eta
from papers.cosim.pair_scores import PairScoreReader
from papers.cosim.system_catalogue import SystemCatalogue
from papers.cosim.systems import View2
from papers.harness import page_writer, runner
from papers.harness.photos import Photos
from papers.harness.result_store import ResultStore
from papers.harness.run_context import RunContext
from papers.harness.table_types import Scope, Table
from papers.harness.verdicts import get_verdict
from tests.papers import synthetic_data

NAMED = 4
"""Photos of each person that pairs name; the others teach the vocabulary."""
SMALL = SystemCatalogue(True, steps=12, inner=10, dim=6)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> RunContext:
    data = synthetic_data.write(tmp_path_factory.mktemp("data") / "data")
    lines = [f"{synthetic_data.FOLDS}\t6"]
    for fold in range(synthetic_data.FOLDS):
        first, second = f"P{2 * fold:02d}", f"P{2 * fold + 1:02d}"
        every = list(combinations(range(1, NAMED + 1), 2))
        lines += [f"{first}\t{i}\t{j}" for i, j in every]
        lines += [f"{first}\t{i}\t{second}\t{j}" for i, j in every]
    (data / "lfw-protocol" / "pairs.txt").write_text("\n".join(lines) + "\n")
    return synthetic_data.context(data)


@pytest.fixture(scope="module")
def quick(context: RunContext) -> list[Table]:
    chapter = cosim.chapter(context, SMALL)
    runner.print_cost([chapter], context.store)
    runner.compute_missing([chapter], context.store)
    return list(chapter.tables())


def named(tables: list[Table], name: str) -> Table:
    return next(t for t in tables if t.name == name)


def test_a_quick_run_has_every_table_but_for_fisher_vectors(
    context: RunContext, quick: list[Table], tmp_path: Path
) -> None:
    page = page_writer.write_chapter(
        tmp_path, "cosim", "CoSiM", "likeness reproduce cosim --quick", quick, context.store
    )
    content = json.loads((tmp_path / "cosim.json").read_text())
    names = [t["name"] for t in content["tables"]]
    assert names == ["table-5", "table-5-paired", "table-4", "figure-10", "table-6", "figure-5", "figure-4"]
    rows = {row["name"]: row for row in content["tables"][0]["rows"]}
    assert rows["CoSiM-a"]["paper"] == {"accuracy": 87.01}
    assert rows["CoSiM-a"]["seconds"] > 0
    assert {*rows["SML-S ⊕ SML-L"]["works"]["fold"]} == {0, 1}
    assert "FVF" not in rows
    assert "2 of ten folds, 24 pairs" in page.read_text()
    for number in (4, 5, 8, 9, 10):
        assert (tmp_path / f"cosim-figure-{number}.svg").stat().st_size > 5000
    assert "P00" not in page.read_text()


def test_an_accuracy_is_the_share_of_pairs_on_the_right_side(context: RunContext, quick: list[Table]) -> None:
    view, system = View2(context), SMALL.networks()["CoSiM-m"]
    right = []
    for fold in range(2):
        result = context.result(view.fit(system, fold))
        judges, test = view.folds[result.record["judge"]], view.folds[fold]
        assert result.record["judge"] != fold
        threshold = best_threshold(-result.arrays["judges"], judges.same)
        right.append(np.mean((-result.arrays["test"] <= threshold) == test.same))
    row = next(r for r in named(quick, "table-5").rows if r.name == "CoSiM-m")
    assert row.figures["accuracy"].value == pytest.approx(100 * np.mean(right))
    assert row.figures["accuracy"].draws == 2
    assert row.figures["thousand parameters"].value == pytest.approx((2 * 10 * 10 + 1) / 1000)


def test_distances_are_the_complement_of_the_networks_scores(context: RunContext, quick: list[Table]) -> None:
    view = View2(context)
    reader, catalogue = PairScoreReader(view, range(2)), SMALL.networks() | SMALL.others()
    for name in ("SML-L", "CoSiM-a"):
        system_scores = reader.system(catalogue[name])
        for distances, fold_scores in zip(reader.strange(system_scores), system_scores.folds, strict=True):
            assert ((distances > 0) & (distances < 1)).all()
            assert (np.argsort(distances, kind="stable") == np.argsort(-fold_scores.test, kind="stable")).all()
    friends, foes = (
        next(r for r in named(quick, "table-6").rows if r.name == "LBP, cosine").figures[c].value
        for c in ("friends", "foes")
    )
    assert 0 < friends < foes < 130
    rows, pairs = view.rows("lbp", 0)[0], view.folds[0]
    white = PairScoreReader(view, [0]).system(catalogue["LBP, Euclidean"]).folds[0].test
    assert np.corrcoef(-white, ((rows[pairs.index[:, 0]] - rows[pairs.index[:, 1]]) ** 2).sum(1))[0, 1] > 0.2


def test_the_model_of_a_fold_does_not_depend_on_that_folds_photos(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its photos replaced by noise, neither the axes nor what is said of the judges changes."""
    view, described = View2(context), Photos.rows
    fold = 3
    fold_photos = view.photos[np.unique(view.folds[fold].index)]
    system = SMALL.networks()["CoSiM-a"]
    before = [context.store.do(view.narrow("lbp", fold)), context.store.do(view.fit(system, fold))]

    def noisy(photos: Photos, photo_set: str, features: str) -> Rows:
        rows = described(photos, photo_set, features).copy()
        rows[fold_photos] = np.random.default_rng(0).random(rows[fold_photos].shape)
        return rows

    monkeypatch.setattr(Photos, "rows", noisy)
    other = View2(RunContext(context.photos, ResultStore(tmp_path), context.scope))
    after = [other.context.store.do(other.narrow("lbp", fold)), other.context.store.do(other.fit(system, fold))]
    kept = ~np.isin(view.photos, fold_photos)
    np.testing.assert_array_equal(after[0].arrays["rows"][kept], before[0].arrays["rows"][kept])
    np.testing.assert_array_equal(after[1].arrays["judges"], before[1].arrays["judges"])
    assert not np.array_equal(after[1].arrays["test"], before[1].arrays["test"])


def test_the_whole_chapter_with_fisher_vectors(
    context: RunContext, quick: list[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cosim, "FOLDS", range(2))
    monkeypatch.setattr(system_catalogue, "INNER_DIMS", (4,))
    monkeypatch.setattr(system_catalogue, "LONG_RUN_STEPS", {"ours": 14, "as printed": 16})
    monkeypatch.setattr(system_catalogue, "PRINTED_STEPS", 15)
    whole = RunContext(context.photos, context.store, Scope(1, 1))
    chapter = cosim.chapter(whole, SystemCatalogue(False, steps=12, inner=10, dim=6))
    runner.compute_missing([chapter], whole.store)
    tables = list(chapter.tables())
    rows = {r.name: r for r in named(tables, "table-5").rows}
    assert {
        "FVF",
        "JSML ⊕ FVF ⊕ Sub-SML",
        "Sub-SML, FV",
        "CoSiM-m, LBP, SIFT, FV",
        "CoSiM-a, as printed",
    } <= rows.keys()
    assert rows["FVF"].figures["thousand parameters"].value == pytest.approx(16.897)
    sizes = {r.name: r for r in named(tables, "figure-10").rows}
    assert sizes["SML-L, r = 4"].figures["thousand parameters"].value == pytest.approx(0.017)
    watched = {r.name: r for r in named(tables, "figure-5").rows}
    assert len(watched) == 8
    assert all(50 < r.figures["best AUC"].value <= 100 for r in watched.values())
    paired = {r.name: r for r in named(tables, "table-5-paired").rows}
    assert paired["CoSiM-a less SML-S ⊕ SML-L"].paper["difference"] == pytest.approx(0.35)
    assert not {get_verdict(r) for r in paired.values()} & {"better", "worse", "mixed"}
    assert all(r.differences == ("difference",) for r in paired.values())
    joint = [r for name, r in paired.items() if "JSML" in name and r.paper]
    assert {get_verdict(r) for r in joint} <= {"altered", "no difference shown"}
    for form, figure in (("m", 86.9), ("a", 87.01)):
        assert rows[f"CoSiM-{form}, as printed"].paper == {"accuracy": figure}
        assert get_verdict(rows[f"CoSiM-{form}, as printed"]) in ("reproduced", "better", "worse")
        assert get_verdict(rows[f"CoSiM-{form}"]) == "altered"


@pytest.mark.parametrize(("f1", "f2"), POINTS)
def test_eta_is_equation_14_over_a(f1: float, f2: float) -> None:
    g = (f1 + f2) / 2
    assert float(eta(np.array([f1]), np.array([f2]))[0]) == pytest.approx(f1 * (1 - f1) / (g * (1 - g)), rel=1e-9)
