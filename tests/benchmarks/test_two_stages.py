"""The comparison of indexes takes the cheapest setting that reaches a recall, and none where nothing does."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import two_stages
from ml.indexes import build


def test_the_cheapest_setting_that_reaches_the_recall_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = two_stages.draw_embeddings(2000, 8)
    index = build(np.arange(2000), rows, name="ivf", p=8)
    true = index.search(rows[:40], 10, m=8).distances
    monkeypatch.setattr(two_stages, "time_searches", lambda index, queries, m, candidates: [float(m)])
    setting = two_stages.find_setting("cells", index, rows[:40], true, 0.9)
    assert setting is not None
    assert setting.recall >= 0.9
    fewer = two_stages.measure_setting("cells", index, rows[:40], true, max(1, setting.m // 2), None)
    assert fewer.recall < 0.9 or setting.m == 1
    assert two_stages.find_setting("cells", index, rows[:40], true, 1.01) is None


def test_all_indexes_are_compared_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.json"
    arguments = ["two_stages", "--n", "1200", "--dim", "8", "--bits", "4", "--recall", "0.5"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--folder", str(tmp_path), "--json", str(path)])
    two_stages.main()
    figures = json.loads(path.read_text())
    assert [point["index"] for point in figures["at"]["0.5"]] == ["flat", "cells", "two stages, 4 bits"]
    assert all(point["recall"] >= 0.5 and point["p95_ms"] >= point["ms"] > 0 for point in figures["at"]["0.5"])
    assert figures["faces"] == 1200
