"""Every committed page of results keeps to the rule of verdicts, and the reader's page to its baselines."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from papers.clml.table_rows import describe_alterations
from papers.harness import pages, summary
from papers.harness.summary_rows import SECTIONS, FigureRef, SummaryRow
from papers.harness.table_types import Curves

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CHAPTERS = ("beyond", "clml", "cosim", "cp-mtml", "manifolds")
NEVER_OF_A_START = ("better", "reproduced", "worse", "mixed", "same sign", "other sign", "altered")


def chapter(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def rows() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}, {table['name']}, {row['name']}", row)
        for name in CHAPTERS
        for table in chapter(name)["tables"]
        for row in table["rows"]
    ]


def covers(figure: dict[str, Any], value: float) -> bool:
    return figure["low"] is None or figure["low"] <= value <= figure["high"]


def steps_in(computations: Any) -> list[Any]:
    """All steps under `options` of a row's computations, read from the JSON without the code that writes it."""
    if isinstance(computations, list):
        return [n for one in computations for n in steps_in(one)]
    if not isinstance(computations, dict):
        return []
    options = computations.get("options")
    own = [o["steps"] for o in (options if isinstance(options, list) else [options]) if o and "steps" in o]
    return own + [n for name, value in computations.items() if name != "options" for n in steps_in(value)]


def test_every_chapter_is_there() -> None:
    of_benchmarks = {"openset", "growth"}
    assert {path.stem for path in RESULTS.glob("*.json")} == set(CHAPTERS) | of_benchmarks
    assert len(rows()) > 400


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_committed_page_equals_the_page_written_from_its_json(name: str) -> None:
    kept = chapter(name)
    assert pages.judge_again(kept) == kept
    assert pages.page(kept) == (RESULTS / f"{name}.md").read_text()


def test_a_row_without_learning_has_no_verdict_of_a_fit() -> None:
    untaught = [(name, row) for name, row in rows() if 0 in steps_in(row["works"])]
    assert len(untaught) > 60
    assert not [name for name, row in untaught if row["verdict"] != "nothing learned"]
    assert not [name for name, row in rows() if row["verdict"] == "nothing learned" and 0 not in row["fit_steps"]]
    assert not [name for name, row in rows() if 0 in row["fit_steps"] and row["verdict"] in NEVER_OF_A_START]


def test_no_row_is_better_if_its_interval_contains_0_or_the_papers_figure() -> None:
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
        wanted = describe_alterations(row["works"]["method"], row["works"]["options"])
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
            for match in re.finditer(
                r"[+-][\d.]+ \[(-[\d.]+), \+([\d.]+)\], p [\d.e-]+( \(corrected t\))?(.{0,21})", note
            ):
                if float(match[1]) < 0 < float(match[2]) and "YouTube" not in note:
                    assert match[4] == ", no difference shown", note


def reader_page() -> tuple[str, str]:
    """The tables of figures, and all else."""
    text = (RESULTS / "README.md").read_text()
    before, rest = text.split(summary.BEGIN)
    figures, after = rest.split(summary.END)
    return figures, before + after


def test_the_figures_of_the_summary_equal_those_of_the_chapters() -> None:
    figures, _ = reader_page()
    assert figures == "\n" + summary.figures({name: chapter(name) for name in CHAPTERS})


def test_every_learned_figure_of_the_summary_has_an_unlearned_baseline_beside_it() -> None:
    figures, prose = reader_page()
    rows = [
        cells.split(" | ") for cells in figures.splitlines() if cells.startswith("| ") and "learned less" not in cells
    ]
    assert len(rows) > 40
    for name, learned, unlearned, difference in rows:
        assert re.match(r"\d+\.\d", learned), name
        if unlearned != summary.NOT_MEASURED:
            assert re.match(r"\d+\.\d.*\(.+\)", unlearned), name
            assert re.match(r"[+-]\d", difference), name
    assert sum(unlearned == summary.NOT_MEASURED for _, _, unlearned, _ in rows) == 1
    bare = re.sub(r"`[^`]*`|p \d\.\d+(?: and \d\.\d+)?|    .*", "", prose)
    assert not re.findall(r"(?<![+\-\d.])\d+\.\d", bare), "a figure in the prose has no baseline beside it"


def test_a_summary_row_without_a_baseline_gives_the_reason() -> None:
    row = SummaryRow("x", FigureRef("beyond", "cnn", "PCA, 64", "closed set: mAP"), None, "")
    assert summary.compare({"beyond": chapter("beyond")}, row) is None
    with pytest.raises(KeyError):
        summary.read({"beyond": chapter("beyond")}, FigureRef("beyond", "cnn", "no such row"))
    assert all(row.unlearned is None or row.baseline for section in SECTIONS for row in section.rows)


def test_curves_are_kept_in_the_json_to_be_drawn_again() -> None:
    table = next(t for t in chapter("clml")["tables"] if t["name"] == "figure-4")
    lines = Curves(**table["plots"][0]["lines"])
    for row in table["rows"]:
        name, panel = row["name"].removesuffix(", with distractors"), "LFW alone"
        if row["name"] != name:
            panel = "with all distractors"
        for n in (1, 10, 100):
            assert lines.panels[panel][name][n - 1] == pytest.approx(row["figures"][f"1@{n}"]["value"], abs=0.01)


def test_the_summary_is_not_rewritten_if_a_row_is_missing(tmp_path: Path) -> None:
    for name in CHAPTERS:
        (tmp_path / f"{name}.json").write_text(json.dumps(chapter(name)))
    assert summary.write_figures(tmp_path) is None
    page = tmp_path / "README.md"
    page.write_text("no marks")
    assert summary.write_figures(tmp_path) is None
    page.write_text(f"before {summary.BEGIN} old {summary.END} after")
    assert summary.write_figures(tmp_path) == page
    assert page.read_text() == f"before {summary.BEGIN}{reader_page()[0]}{summary.END} after"
    (tmp_path / "beyond.json").write_text(json.dumps({**chapter("beyond"), "tables": []}))
    page.write_text(f"{summary.BEGIN} old {summary.END}")
    assert summary.write_figures(tmp_path) is None
    assert "old" in page.read_text()
