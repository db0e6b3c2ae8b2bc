"""The benchmarks of a service run to their end on a small gallery, and their tables have every figure."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import engine_client, engines, reembedding, request_cost, service, service_goals, service_load, swap
from benchmarks.load.private_gallery import run_private_service, write_gallery
from benchmarks.load.traffic import MixedTraffic
from benchmarks.service_load import LEAST, ONE, TWO, compare


def test_the_programs_are_loaded_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_load, "WARM_UP_SECONDS", 0.1)
    [row] = compare(400, [2], rounds=2, seconds=0.2)
    assert (row["faces"], row["clients"]) == (400, 2)
    for name in (ONE, TWO, LEAST):
        rate, p50, p99, processor = row[name]  # type: ignore[misc]
        assert rate > 0
        assert 0 < p50 <= p99
        assert processor > 0
    median, least, most = row[f"{TWO} / {ONE}"]  # type: ignore[misc]
    assert 0 < least <= median <= most


def test_the_tables_are_written_and_a_failure_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, list[dict[str, Any]]] = {
        "service_load": [
            {"faces": 400, "clients": 16, f"{TWO} / {ONE}": [2.0, 1.9, 2.1], f"{ONE} / {LEAST}": [0.25, 0.2, 0.3]}
        ],
        "engines": [
            {"faces": 400, "clients": 1, ONE: [9, 2.0, 4.0], "milvus": [6, 4.0, 2.0], f"{ONE} / milvus": [1.5, 1, 2]}
        ],
        "import_embeddings": [{"vectors": 2000, "ratio": 3.5, "disk_ratio": 1.25}],
        "importing": [{"service": {"collection": {"face_count": 40}}, "ratio": 0.9}],
        "ready_again": [
            {"faces": 13_000, "start": "from the rows", "seconds": 1.5, "api_mib": 300.0, "api_goal_mib": 304.0}
        ],
        "reembedding": [{"faces": 200, "dim": 64, "ratio_seconds": 1.6}],
    }

    def run(module: str, options: Sequence[str], file: Path) -> list[dict[str, Any]]:
        if module not in figures:
            raise subprocess.CalledProcessError(1, module)
        return figures[module]

    monkeypatch.setattr(service, "run", run)
    monkeypatch.setattr(sys, "argv", ["service", str(tmp_path), "--small"])
    with pytest.raises(SystemExit):
        service.main()
    written = (tmp_path / "service.md").read_text()
    for line in (
        "| 400 faces, 16 clients: searches a second, one process / least program | 0.25 | 0.8 | MISSED |",
        "| 400 faces, 16 clients: searches a second, two processes / one | 2.0 | 1.8 | reached |",
        "| 400 faces, 1 clients, equal recall: searches a second / milvus | 1.5 | 1.2 | reached |",
        "| 400 faces, 1 clients, equal recall: median / milvus | 0.5 | 1.0 | reached |",
        "| 400 faces, 1 clients, equal recall: p99 / milvus | 2.0 | 1.0 | MISSED |",
        "| import of 2,000 vectors / FAISS train + add | 3.5 | 3.0 | MISSED |",
        "| import of photos with 40 faces / bare pipeline | 0.9 | 0.8 | reached |",
        "| 13,000 faces, start from the rows, s | 1.5 | 2.0 | reached |",
        "| 13,000 faces, memory of the API, from the rows, MiB | 300.0 | 304.0 | reached |",
        "| re-embedding 200 descriptors of 64 numbers / read + product | 1.6 | 1.5 | MISSED |",
        "swap --faces 400 --rate 20 --seconds 1 failed",
    ):
        assert line in written
    assert json.loads((tmp_path / "service.json").read_text())["reembedding"] == figures["reembedding"]


def test_descriptors_are_embedded_as_the_reference_multiplies_them() -> None:
    with reembedding.open_gallery(300, 64) as resources:
        model = reembedding.make_model(64, 8)
        measured = reembedding.compare(resources, model, rounds=2)
        goals = service_goals.list_goals({"reembedding": [{"faces": 300, "dim": 64} | measured]})
    assert goals[0].value == measured["ratio_seconds"] > 0


def test_a_swap_under_load_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "WARM_UP_SECONDS", 0.1)
    gallery = write_gallery(tmp_path, 400, has_challenger=True)
    with run_private_service(tmp_path) as (client, address):
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        traffic = MixedTraffic(address, gallery, shares={"vector": 1.0})
        measured = asyncio.run(swap.measure(client, traffic, tmp_path, 10, 1))
        assert swap.read_model(client) == swap.NEW_MODEL
    assert measured["searches"] > 0
    assert measured["errors"] <= measured["searches"]


def test_other_engines_get_as_many_cells_as_equal_recall_takes() -> None:
    truth = np.arange(40).reshape(4, 10)
    assert engines.measure_recall([list(range(10)), list(range(10, 15)), [], [30]], truth) == pytest.approx(0.4)
    running = object.__new__(engines.EngineProcess)
    tried: list[int] = []

    def answer(question: dict[str, int]) -> dict[str, list[list[int]]]:
        tried.append(question["probed"])
        return {"found": [row[: min(10, question["probed"])].tolist() for row in truth]}

    running._ask = answer  # type: ignore[method-assign]
    assert running.match_recall(truth, 0.7, cells=64) == (7, pytest.approx(0.7))
    assert max(tried) == 8


def test_vectors_are_encoded_as_postgresql_copies_them() -> None:
    encoded = engine_client.encode_rows(7, np.array([[1.0, -2.0]], np.float32))
    assert encoded.hex() == "000200000004000000070000000c000200003f800000c0000000"


def test_the_cost_of_a_request_is_compared_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(
        request_cost.compare(
            request_cost.parse_arguments(["--faces", "400", "--rounds", "1", "--requests", "5", "--clients", "2"])
        )
    )
    [line] = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"400 faces, 1 cells probed, 2 clients; processor microseconds of a search: service \d+, least program \d+; "
        r"least / service \d\.\d\d",
        line,
    )
