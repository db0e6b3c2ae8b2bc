"""The rule of verdicts, case by case, and that every committed page of results keeps to it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.reproduce import pages, summary
from app.cli.reproduce.clml.rows import altered
from app.cli.reproduce.plan import Declared, Figure, Found, Lines, Row, Work
from app.cli.reproduce.summary_lines import SECTIONS, Cell, Line
from app.cli.reproduce.verdicts import fit_steps, judge, judged
from ml.embedders.base import Progress

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CHAPTERS = ("beyond", "clml", "cosim", "cp-mtml", "manifolds")
NEVER_OF_A_START = ("better", "reproduced", "worse", "mixed", "same sign", "other sign", "altered")


def work(key: dict[str, Any]) -> Work:
    def run(folder: Path, progress: Progress) -> Found:
        raise AssertionError("nothing is computed here")

    return Work("work", key, 1.0, run)


def absolute(value: float, low: float, high: float, paper: float, **more: Any) -> Row:
    return Row("row", {"mAP": Figure(value, low, high)}, {"mAP": paper}, **more)


def difference(value: float, low: float, high: float, paper: float | None = None, **more: Any) -> Row:
    printed = {} if paper is None else {"less": paper}
    return Row("row", {"less": Figure(value, low, high)}, printed, differences=("less",), **more)


def test_a_fit_without_a_step_learned_nothing_whatever_its_figure() -> None:
    untaught = work({"method": "stml", "options": {"steps": 0}})
    for row in (
        absolute(99.0, 98.0, 100.0, 70.0, works=[untaught]),
        absolute(99.0, 98.0, 100.0, 70.0, works=[untaught], verdict="not possible here"),
        difference(5.0, 4.0, 6.0, 5.0, works=[work({"options": {"steps": 30}}), untaught]),
        difference(0.0, 0.0, 0.0, works=[untaught]),
        absolute(99.0, 98.0, 100.0, 70.0, works=[work({"projections of": {"options": {"steps": 0}}})]),
    ):
        assert judged(row) == "nothing learned"
    taught = absolute(99.0, 98.0, 100.0, 70.0, works=[work({"options": {"steps": 30}, "plan": {"steps": 0}})])
    assert (judged(taught), fit_steps(taught)) == ("better", [30])
    assert fit_steps(absolute(1.0, 0.0, 2.0, 1.0, works=[work({"method": "l2", "options": {}})])) == []


@pytest.mark.parametrize("paper", [None, 0.0, 0.5, -3.0])
@pytest.mark.parametrize(
    "interval", [(0.0, 0.0, 0.0), (0.2, -0.1, 0.5), (0.5, 0.0, 1.0), (-0.4, -0.9, 0.0), (3.0, math.nan, math.nan)]
)
def test_a_difference_that_may_be_none_is_neither_better_nor_reproduced(
    paper: float | None, interval: tuple[float, float, float]
) -> None:
    for more in ({}, {"altered": "another start"}, {"claim": "above"}, {"verdict": "ours"}):
        assert judged(difference(*interval, paper, **more)) == "no difference shown"


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
def test_a_difference_that_is_shown(row: Row, verdict: str) -> None:
    assert judged(row) == verdict


def test_several_differences_are_judged_together() -> None:
    both = {"a": Figure(2.0, 1.0, 3.0), "b": Figure(2.0, -1.0, 5.0)}
    found = judge(Row("row", both, differences=("a", "b"), claim="above"))
    assert (found.verdict, found.reason) == ("no difference shown", "in b")
    apart = {"a": Figure(2.0, 1.0, 3.0), "b": Figure(-2.0, -3.0, -1.0)}
    assert judged(Row("row", apart, differences=("a", "b"), claim="above")) == "mixed"


def test_an_altered_method_reproduces_nothing() -> None:
    for value, beside in ((50.0, "level with"), (60.0, "above"), (40.0, "below")):
        found = judge(absolute(value, value - 2, value + 2, 50.0, altered="unit length"))
        assert (found.verdict, found.reason) == ("altered", f"unit length; {beside} the printed figure")
    less = absolute(60.0, 58.0, 62.0, 50.0, altered="unit length", lower_is_better=("mAP",))
    assert judge(less).reason.endswith("above the printed figure")
    assert judge(Row("row", {"mAP": Figure(1.0)}, altered="unit length")).reason == "unit length"


def test_columns_that_disagree_are_named() -> None:
    row = Row("row", {"x": Figure(50.0), "y": Figure(60.0), "z": Figure(5.0)}, {"x": 50.0, "y": 50.0, "z": 9.0})
    assert judge(row).reason == "better at y; reproduced at x; worse at z"
    assert judged(replace(row, compared=("y",))) == "better"
    assert judged(replace(row, compared=("y",), lower_is_better=("y",))) == "worse"
    assert judged(replace(row, compared=("y",), tolerance=11.0)) == "reproduced"


@pytest.mark.parametrize("verdict", ["ours", "not possible here"])
def test_a_table_can_say_only_that_nothing_is_compared(verdict: Declared) -> None:
    assert judged(absolute(90.0, 89.0, 91.0, 50.0, verdict=verdict)) == verdict


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
    assert altered(method, options) == differs


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
    told = {"title": "C", "command": "c", "date": "d", "machine": "m", "commit": "0", "quick": False, "missing": 0}
    return {**told, "tables": [table]}


def test_a_page_is_written_from_its_json_alone(tmp_path: Path) -> None:
    row = difference(0.2, -0.1, 0.5, 3.0, altered="another start", cause="p 0.4")
    kept = content(row)
    kept["tables"][0]["rows"][0] |= {"verdict": "better", "reason": ""}
    path = tmp_path / "clml.json"
    path.write_text(json.dumps(kept))
    asked = ["reproduce", "clml", "--from-json", "--out", str(tmp_path)]
    told = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert (told.exit_code, "clml.md" in told.output) == (0, True)
    text = (tmp_path / "clml.md").read_text()
    wanted = "no difference shown: altered: another start; p 0.4"
    assert f"| row | 0.2 [-0.1, 0.5] (3) | {wanted} |" in text
    again = json.loads(path.read_text())["tables"][0]["rows"][0]
    assert (again["verdict"], pages.row_of(again).altered) == ("no difference shown", "another start")
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    missing = CliRunner().invoke(app, ["reproduce", "cosim", "--from-json", "--out", str(tmp_path)])
    assert missing.exit_code == 2


def test_without_data_something_must_be_there_already() -> None:
    assert CliRunner().invoke(app, ["reproduce", "clml"]).exit_code == 2


def chapter(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def rows() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}, {table['name']}, {row['name']}", row)
        for name in CHAPTERS
        for table in chapter(name)["tables"]
        for row in table["rows"]
    ]


def covers(figure: dict[str, Any], value: float) -> bool:
    return figure["low"] is None or figure["low"] <= value <= figure["high"]


def steps_in(works: Any) -> list[Any]:
    """All steps under `options` of a row's works, read from the JSON without the code that writes it."""
    if isinstance(works, list):
        return [n for one in works for n in steps_in(one)]
    if not isinstance(works, dict):
        return []
    options = works.get("options")
    own = [o["steps"] for o in (options if isinstance(options, list) else [options]) if o and "steps" in o]
    return own + [n for name, value in works.items() if name != "options" for n in steps_in(value)]


def test_every_chapter_is_there() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == set(CHAPTERS)
    assert len(rows()) > 400


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_committed_page_is_what_the_rule_says_of_its_json(name: str) -> None:
    kept = chapter(name)
    assert pages.judge_again(kept) == kept
    assert pages.page(kept) == (RESULTS / f"{name}.md").read_text()


def test_nothing_is_said_of_a_start_that_is_said_of_a_fit() -> None:
    untaught = [(name, row) for name, row in rows() if 0 in steps_in(row["works"])]
    assert len(untaught) > 60
    assert not [name for name, row in untaught if row["verdict"] != "nothing learned"]
    assert not [name for name, row in rows() if row["verdict"] == "nothing learned" and 0 not in row["fit_steps"]]
    assert not [name for name, row in rows() if 0 in row["fit_steps"] and row["verdict"] in NEVER_OF_A_START]


def test_no_better_has_an_interval_that_covers_0_or_the_paper() -> None:
    for name, row in rows():
        better = row["verdict"] == "better"
        columns = row["judged_by"].get("compared") or [c for c in row["paper"] if c in row["figures"]]
        assert not (better and not columns), name
        assert not (
            better
            and any(
                row["figures"][c]["low"] is not None and covers(row["figures"][c], row["paper"][c]) for c in columns
            )
        ), name
        shown = [row["figures"][c] for c in row["judged_by"].get("differences", [])]
        if any(f["value"] == 0 or covers(f, 0.0) for f in shown):
            assert row["verdict"] in ("no difference shown", "nothing learned"), name


def test_every_row_that_is_called_a_difference_is_judged_as_one() -> None:
    for name, row in rows():
        if " less " in row["name"]:
            assert row["judged_by"].get("differences"), name


def test_what_is_reproduced_has_the_papers_figure_beside_it_and_is_the_papers_own() -> None:
    compared = [(name, row) for name, row in rows() if row["verdict"] in ("reproduced", "better", "worse", "mixed")]
    assert len(compared) > 20
    for name, row in compared:
        assert set(row["paper"]) & set(row["figures"]), name
        assert "altered" not in row["judged_by"], name
    for name, row in rows():
        wanted = re.search(r"L0 from the next|from PCA|inverse metric|both sides", row["name"])
        if wanted and row["paper"]:
            assert row["judged_by"].get("altered"), name


def test_cosim_as_printed_carries_the_papers_figure_and_its_own_verdict() -> None:
    table = {row["name"]: row for row in chapter("cosim")["tables"][0]["rows"]}
    for form, paper in (("m", 86.9), ("a", 87.01)):
        printed, own = table[f"CoSiM-{form}, as printed"], table[f"CoSiM-{form}"]
        assert (printed["paper"], printed["verdict"]) == ({"accuracy": paper}, "worse")
        assert own["verdict"] == "altered"


def test_ldml_and_clml_are_named_as_altered_by_their_options() -> None:
    kept = [
        row for table in chapter("clml")["tables"] for row in table["rows"]
        if row["paper"] and row["verdict"] != "not possible here" and row["works"].get("method") in ("ldml", "clml")
    ]  # fmt: skip
    assert len(kept) > 40
    for row in kept:
        wanted = altered(row["works"]["method"], row["works"]["options"])
        assert (
            row["judged_by"]["altered"].endswith(wanted or "drawn vectors, not a million faces")
            or "drawn" in row["name"]
        )


def test_rivals_that_were_not_tuned_say_so_in_table_caption_and_picture() -> None:
    table = next(t for t in chapter("clml")["tables"] if t["name"] == "figure-4")
    assert "Not tuned alike" in table["header"]
    assert "not tuned" in table["plots"][0]["alt"]
    for row in table["rows"]:
        tuned = row["name"].startswith(("CLML", "LDML"))
        assert tuned == ("not tuned" not in row["name"])
        assert tuned or row["verdict"] in ("ours", "no difference shown")
    picture = (RESULTS / "clml-figure-4.svg").read_text()
    for name in table["plots"][0]["lines"]["panels"]["LFW alone"]:
        assert f"<!-- {name} -->" in picture


def test_nulls_are_named_wherever_a_note_has_an_interval_that_covers_0() -> None:
    for name in CHAPTERS:
        for note in (note for table in chapter(name)["tables"] for note in table["notes"]):
            for found in re.finditer(
                r"[+-][\d.]+ \[(-[\d.]+), \+([\d.]+)\], p [\d.e-]+( \(corrected t\))?(.{0,21})", note
            ):
                if float(found[1]) < 0 < float(found[2]) and "YouTube" not in note:
                    assert found[4] == ", no difference shown", note


def reader_page() -> tuple[str, str]:
    """The tables of figures, and all else."""
    text = (RESULTS / "README.md").read_text()
    before, rest = text.split(summary.BEGIN)
    figures, after = rest.split(summary.END)
    return figures, before + after


def test_the_readers_figures_are_those_of_the_chapters() -> None:
    figures, _ = reader_page()
    assert figures == "\n" + summary.figures({name: chapter(name) for name in CHAPTERS})


def test_no_learned_figure_on_the_readers_page_stands_without_an_unlearned_one() -> None:
    figures, prose = reader_page()
    lines = [line.split(" | ") for line in figures.splitlines() if line.startswith("| ") and "learned less" not in line]
    assert len(lines) > 40
    for name, learned, unlearned, apart in lines:
        assert re.match(r"\d+\.\d", learned), name
        if unlearned != summary.NOT_MEASURED:
            assert re.match(r"\d+\.\d.*\(.+\)", unlearned), name
            assert re.match(r"[+-]\d", apart), name
    assert sum(unlearned == summary.NOT_MEASURED for _, _, unlearned, _ in lines) == 1
    bare = re.sub(r"`[^`]*`|p \d\.\d+(?: and \d\.\d+)?|    .*", "", prose)
    assert not re.findall(r"(?<![+\-\d.])\d+\.\d", bare), "a figure in the prose has no baseline beside it"


def test_a_comparison_says_only_what_was_tested() -> None:
    near, far = Figure(96.2, 95.3, 97.0), Figure(87.8, 86.2, 89.3)
    other = Figure(96.5, 95.6, 97.4)
    assert str(summary.Comparison(near, other)) == "-0.3 (unpaired; the intervals overlap)"
    assert str(summary.Comparison(near, far)) == "+8.4 (unpaired; the intervals lie apart)"
    assert str(summary.Comparison(near, Figure(96.5))).endswith("overlap)")
    paired = summary.Comparison(near, other, "mAP -0.3 [-0.6, +0.1], p 0.2, no difference shown")
    assert str(paired) == "-0.3 [-0.6, +0.1], p 0.2: no difference shown"
    assert str(summary.Comparison(near, far, "x +2.9 [+2.2, +3.7], p 0.0001")) == "+2.9 [+2.2, +3.7], p 0.0001"


def test_a_row_of_the_readers_page_without_a_baseline_says_so() -> None:
    line = Line("x", Cell("beyond", "cnn", "PCA, 64", "closed set: mAP"), None, "")
    assert summary.compare({"beyond": chapter("beyond")}, line) is None
    with pytest.raises(KeyError):
        summary.read({"beyond": chapter("beyond")}, Cell("beyond", "cnn", "no such row"))
    assert all(line.unlearned is None or line.baseline for section in SECTIONS for line in section.lines)


def test_curves_are_kept_in_the_json_to_be_drawn_again() -> None:
    table = next(t for t in chapter("clml")["tables"] if t["name"] == "figure-4")
    lines = Lines(**table["plots"][0]["lines"])
    for row in table["rows"]:
        name, panel = row["name"].removesuffix(", with distractors"), "LFW alone"
        if row["name"] != name:
            panel = "with all distractors"
        for n in (1, 10, 100):
            assert lines.panels[panel][name][n - 1] == pytest.approx(row["figures"][f"1@{n}"]["value"], abs=0.01)
