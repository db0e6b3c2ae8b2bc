import re

import numpy as np
import plotly.graph_objects as go
import pytest

from ml.evaluation.plots import figures, page
from ml.evaluation.protocols import held_out_people
from ml.evaluation.records import EvaluationReport
from ml.evaluation.report import rank_protocol, summarise


@pytest.fixture(scope="module")
def reports() -> dict[str, EvaluationReport]:
    draw, people = np.random.default_rng(0), np.repeat(np.arange(40), 4)
    protocol = held_out_people(people, 0.5)
    rows = [
        (draw.normal(size=(40, 6))[people] + loud * draw.normal(size=(160, 6))).astype(np.float32) for loud in (0.5, 1)
    ]
    return {name: summarise([rank_protocol(r, protocol)], protocol="p") for name, r in zip("ab", rows, strict=True)}


def test_the_curves_equal_those_of_the_reports(reports: dict[str, EvaluationReport]) -> None:
    pictures = figures(reports)
    assert [curve["name"] for curve in pictures["roc"]["data"]] == ["a", "b"]
    first = reports["a"]
    assert pictures["roc"]["data"][0]["y"] == [1 - p.fnmr for p in first.det]
    band, curve = pictures["cmc"]["data"][:2]
    assert curve["y"] == list(first.cmc)
    assert max(band["y"]) == max(first.cmc_high)
    assert all(x > 0 and y > 0 for part in pictures["det"]["data"] for x, y in zip(part["x"], part["y"], strict=True))


def test_plotly_accepts_the_figures(reports: dict[str, EvaluationReport]) -> None:
    for one in figures(reports).values():
        assert len(go.Figure(one).data) == len(one["data"])


def test_a_page_needs_no_network(reports: dict[str, EvaluationReport]) -> None:
    text = page(reports)
    assert text.count('class="plotly-graph-div"') == 3
    assert not re.search(r"<script[^>]+src=", text)


def test_a_report_without_intervals_is_drawn_without_a_band(reports: dict[str, EvaluationReport]) -> None:
    old = EvaluationReport.from_dict(reports["a"].to_dict() | {"cmc_low": (), "cmc_high": ()})
    assert len(figures({"a": old})["cmc"]["data"]) == 1
