"""The benchmarks of a service run to their end on a small gallery, and their tables have every figure."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import request_cost, service
from benchmarks.service_load import LEAST, ONE, TWO, compare


def test_the_programs_are_loaded_in_turn() -> None:
    [row] = compare(400, [2], rounds=2, seconds=0.2)
    assert (row["faces"], row["clients"]) == (400, 2)
    for name in (ONE, TWO, LEAST):
        rate, p50, p99, processor = row[name]  # type: ignore[misc]
        assert rate > 0
        assert 0 < p50 <= p99
        assert processor > 0
    median, least, most = row[f"{TWO} / {ONE}"]  # type: ignore[misc]
    assert 0 < least <= median <= most


def test_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"faces": 400, "clients": 1, ONE: [9.0, 1.0, 2.0, 0.5], TWO: [18.0, 1.0, 2.0, 0.5], LEAST: [36.0, 1, 1, 1]}
    load |= {f"{TWO} / {ONE}": [2.0, 1.9, 2.1], f"{ONE} / {LEAST}": [0.25, 0.2, 0.3]}
    imported = dict.fromkeys(service.IMPORT_COLUMNS, 1.5) | {"vectors": 2000}

    def run(name: str, *options: str) -> str:
        if "--json" in options:
            Path(options[-1]).write_text(json.dumps([load] if name == "service_load" else imported))
        return "after SIGKILL 1.00 s\n"

    monkeypatch.setattr(service, "run", run)
    monkeypatch.setattr(sys, "argv", ["service", str(tmp_path), "--small"])
    service.main()
    written = (tmp_path / "service.md").read_text()
    figures = "| 400 | 1 | two API processes | 18.0 | 1.0 | 2.0 | 0.5 |"
    assert f"{figures} two API processes / one API process: [2.0, 1.9, 2.1] |" in written
    assert "| 2000 | 1.50 | 1.50 |" in written
    assert "after SIGKILL 1.00 s" in written


def test_the_cost_of_a_request_is_compared_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(
        request_cost.compare(request_cost.parse_arguments(["--faces", "400", "--rounds", "1", "--requests", "5"]))
    )
    [line] = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"400 faces, 1 cells probed; processor microseconds of a search: service \d+, least program \d+; "
        r"least / service \d\.\d\d",
        line,
    )
