"""A search by photo is compared with its stages, with the least program, and with the bare pipeline."""

import asyncio
import os
import re

import pytest

from app.threads import ENVIRONMENT_NAMES
from benchmarks import photo_cost, photo_load
from benchmarks.load.processes import restart_with_one_thread


def test_a_search_by_photo_is_compared_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(photo_cost.compare(photo_cost.parse_arguments(["--faces", "400", "--rounds", "2"])))
    lines = capsys.readouterr().out.splitlines()
    milliseconds = [float(re.search(r"(\d+\.\d\d) ms", line)[1]) for line in lines]  # type: ignore[index]
    assert len(lines) == 9
    assert milliseconds[6] == pytest.approx(sum(milliseconds[:6]), rel=0.5)
    assert all(re.search(r" ms   \d\.\d\d of the sum$", line) for line in lines[7:])


def test_searches_by_photo_are_compared_with_the_bare_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--faces", "400", "--clients", "2", "--processes", "1", "--rounds", "1", "--seconds", "0.5"]
    photo_load.compare(photo_load.parse_arguments(arguments))
    service, pipeline, ratio = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert min(service, pipeline) > 0
    assert ratio == pytest.approx(service / pipeline, rel=0.1)


def test_a_measurement_starts_again_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two, a helper of FAISS went on for milliseconds after a search, which counted for the next stage."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda _program, _arguments, environment: started.append(environment))
    for name in ENVIRONMENT_NAMES:
        monkeypatch.delenv(name, raising=False)
    restart_with_one_thread("benchmarks.photo_cost")
    [environment] = started
    monkeypatch.setattr(os, "environ", environment)
    restart_with_one_thread("benchmarks.photo_cost")
    assert len(started) == 1
    assert {environment[name] for name in ENVIRONMENT_NAMES} == {"1"}
