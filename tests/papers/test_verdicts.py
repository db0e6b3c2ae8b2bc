"""The rule of verdicts, case by case, and pages written from their JSON alone."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from ml.embedders.base import Progress
from papers.clml.table_rows import describe_alterations
from papers.harness import pages, summary
from papers.harness.table_types import Computation, ComputationOutput, Declared, Figure, Row
from papers.harness.verdicts import fit_steps, get_verdict, judge


def computation(key: dict[str, Any]) -> Computation:
    def run(folder: Path, progress: Progress) -> ComputationOutput:
        raise AssertionError("nothing is computed here")

    return Computation("computation", key, 1.0, run)


def absolute(value: float, low: float, high: float, paper: float, **more: Any) -> Row:
    return Row("row", {"mAP": Figure(value, low, high)}, {"mAP": paper}, **more)


def difference(value: float, low: float, high: float, paper: float | None = None, **more: Any) -> Row:
    printed = {} if paper is None else {"less": paper}
    return Row("row", {"less": Figure(value, low, high)}, printed, differences=("less",), **more)


def test_a_fit_without_a_step_learned_nothing_whatever_its_figure() -> None:
    untaught = computation({"method": "stml", "options": {"steps": 0}})
    for row in (
        absolute(99.0, 98.0, 100.0, 70.0, computations=[untaught]),
        absolute(99.0, 98.0, 100.0, 70.0, computations=[untaught], verdict="not possible here"),
        difference(5.0, 4.0, 6.0, 5.0, computations=[computation({"options": {"steps": 30}}), untaught]),
        difference(0.0, 0.0, 0.0, computations=[untaught]),
        absolute(99.0, 98.0, 100.0, 70.0, computations=[computation({"projections of": {"options": {"steps": 0}}})]),
    ):
        assert get_verdict(row) == "nothing learned"
    taught = absolute(
        99.0, 98.0, 100.0, 70.0, computations=[computation({"options": {"steps": 30}, "plan": {"steps": 0}})]
    )
    assert (get_verdict(taught), fit_steps(taught)) == ("better", [30])
    assert fit_steps(absolute(1.0, 0.0, 2.0, 1.0, computations=[computation({"method": "l2", "options": {}})])) == []


@pytest.mark.parametrize("paper", [None, 0.0, 0.5, -3.0])
@pytest.mark.parametrize(
    "interval", [(0.0, 0.0, 0.0), (0.2, -0.1, 0.5), (0.5, 0.0, 1.0), (-0.4, -0.9, 0.0), (3.0, math.nan, math.nan)]
)
def test_a_difference_whose_interval_contains_zero_is_neither_better_nor_reproduced(
    paper: float | None, interval: tuple[float, float, float]
) -> None:
    fields: list[dict[str, Any]] = [{}, {"altered": "another start"}, {"claim": "above"}, {"verdict": "ours"}]
    for more in fields:
        assert get_verdict(difference(*interval, paper, **more)) == "no difference shown"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (difference(2.0, 1.0, 3.0, 2.5), "reproduced"),
        (difference(1.7, 1.4, 1.9, 5.1), "same sign"),
        (difference(1.7, 1.4, 1.9, 2.5), "same sign"),
        (difference(-2.0, -3.7, -0.3, 6.6), "other sign"),
        (difference(-6.9, -8.1, -5.7, 0.0), "other sign"),
        (difference(2.0, 1.0, 3.0, claim="above"), "same sign"),
        (difference(2.0, 1.0, 3.0, claim="below"), "other sign"),
        (difference(2.0, 1.0, 3.0), "ours"),
        (difference(2.0, 1.0, 3.0, 2.5, altered="another start"), "altered"),
    ],
)
def test_a_difference_whose_interval_excludes_zero_has_a_verdict(row: Row, verdict: str) -> None:
    assert get_verdict(row) == verdict


def test_several_differences_are_judged_together() -> None:
    both = {"a": Figure(2.0, 1.0, 3.0), "b": Figure(2.0, -1.0, 5.0)}
    judged = judge(Row("row", both, differences=("a", "b"), claim="above"))
    assert (judged.verdict, judged.reason) == ("no difference shown", "in b")
    figures = {"a": Figure(2.0, 1.0, 3.0), "b": Figure(-2.0, -3.0, -1.0)}
    assert get_verdict(Row("row", figures, differences=("a", "b"), claim="above")) == "mixed"


def test_an_altered_method_reproduces_nothing() -> None:
    for value, beside in ((50.0, "level with"), (60.0, "above"), (40.0, "below")):
        judged = judge(absolute(value, value - 2, value + 2, 50.0, altered="unit length"))
        assert (judged.verdict, judged.reason) == ("altered", f"unit length; {beside} the printed figure")
    less = absolute(60.0, 58.0, 62.0, 50.0, altered="unit length", lower_is_better=("mAP",))
    assert judge(less).reason.endswith("above the printed figure")
    assert judge(Row("row", {"mAP": Figure(1.0)}, altered="unit length")).reason == "unit length"


def test_columns_that_disagree_are_named() -> None:
    row = Row("row", {"x": Figure(50.0), "y": Figure(60.0), "z": Figure(5.0)}, {"x": 50.0, "y": 50.0, "z": 9.0})
    assert judge(row).reason == "better at y; reproduced at x; worse at z"
    assert get_verdict(replace(row, compared=("y",))) == "better"
    assert get_verdict(replace(row, compared=("y",), lower_is_better=("y",))) == "worse"
    assert get_verdict(replace(row, compared=("y",), tolerance=11.0)) == "reproduced"


@pytest.mark.parametrize("verdict", ["ours", "not possible here"])
def test_a_table_may_declare_only_verdicts_without_a_comparison(verdict: Declared) -> None:
    assert get_verdict(absolute(90.0, 89.0, 91.0, 50.0, verdict=verdict)) == verdict


@pytest.mark.parametrize(
    ("method", "options", "differs"),
    [
        ("l2", {}, ""),
        ("ldml", {}, "unit length, held to its start"),
        ("ldml", {"unit": False, "stay": 0.0}, ""),
        ("ldml", {"spherical": 0.7, "stay": 0.0}, "unit length, loss on the sphere"),
        ("clml", {"unit": False, "stay": 0.0, "k": 4}, "maps pulled together"),
        ("clml", {"unit": False, "stay": 0.0, "pull": 0.0}, ""),
    ],
)
def test_ldml_and_clml_say_what_the_paper_does_not_do(method: str, options: dict[str, Any], differs: str) -> None:
    assert describe_alterations(method, options) == differs


def content(row: Row) -> dict[str, Any]:
    figures = {
        c: {"value": f.value, "low": f.low, "high": f.high, "sd": None, "draws": 1} for c, f in row.figures.items()
    }
    kept = {"name": row.name, "figures": figures, "paper": dict(row.paper), **pages.verdict_fields(row)}
    lines = {"panels": {"one": {"a": [1.0, 2.0]}}, "xlabel": "n", "ylabel": "percent"}
    plot = {"name": "curve", "alt": "a curve", "lines": lines}
    table = {
        "name": "t",
        "title": "T",
        "header": "h",
        "columns": [*figures],
        "notes": [],
        "rows": [kept],
        "plots": [plot],
    }
    page = {"title": "C", "command": "c", "date": "d", "machine": "m", "commit": "0", "quick": False, "missing": 0}
    return {**page, "tables": [table]}


def test_a_page_is_written_from_its_json_alone(tmp_path: Path) -> None:
    row = difference(0.2, -0.1, 0.5, 3.0, altered="another start", cause="p 0.4")
    kept = content(row)
    kept["tables"][0]["rows"][0] |= {"verdict": "better", "reason": ""}
    path = tmp_path / "clml.json"
    path.write_text(json.dumps(kept))
    arguments = ["reproduce", "clml", "--from-json", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert (result.exit_code, "clml.md" in result.output) == (0, True)
    text = (tmp_path / "clml.md").read_text()
    wanted = "no difference shown: altered: another start; p 0.4"
    assert f"| row | 0.2 [-0.1, 0.5] (3) | {wanted} |" in text
    again = json.loads(path.read_text())["tables"][0]["rows"][0]
    assert (again["verdict"], pages.row_of(again).altered) == ("no difference shown", "another start")
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    missing = CliRunner().invoke(app, ["reproduce", "cosim", "--from-json", "--out", str(tmp_path)])
    assert missing.exit_code == 2


def test_without_data_and_without_results_the_command_fails() -> None:
    assert CliRunner().invoke(app, ["reproduce", "clml"]).exit_code == 2


def test_a_comparison_says_only_what_was_tested() -> None:
    near, far = Figure(96.2, 95.3, 97.0), Figure(87.8, 86.2, 89.3)
    other = Figure(96.5, 95.6, 97.4)
    assert str(summary.BaselineGap(near, other)) == "-0.3 (unpaired; the intervals overlap)"
    assert str(summary.BaselineGap(near, far)) == "+8.4 (unpaired; the intervals lie apart)"
    assert str(summary.BaselineGap(near, Figure(96.5))).endswith("overlap)")
    paired = summary.BaselineGap(near, other, "mAP -0.3 [-0.6, +0.1], p 0.2, no difference shown")
    assert str(paired) == "-0.3 [-0.6, +0.1], p 0.2: no difference shown"
    assert str(summary.BaselineGap(near, far, "x +2.9 [+2.2, +3.7], p 0.0001")) == "+2.9 [+2.2, +3.7], p 0.0001"
