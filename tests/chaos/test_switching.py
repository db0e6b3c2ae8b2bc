"""SIGKILL while a collection is switched to another recogniser and back, and while photos are imported meanwhile."""

import io
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from ml import images
from ml.synthetic_faces import draw, person
from tests.chaos.test_chaos import accepted
from tests.conftest import free_port
from tests.crew import Crew, check
from tests.ml.learned_onnx import learned_onnx

COLLECTION = "switching"
DEPLOYMENT = f"/v1/collections/{COLLECTION}/deployments/identity"
PEOPLE, SHOTS = 20, 4
DELAYS_SECONDS = (0.0, 0.05, 0.15, 0.4)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    home = tmp_path / "home"
    home.mkdir()
    started = Crew(home, free_port())
    started.client.put(f"/v1/collections/{COLLECTION}")
    yield started
    started.stop()


def start_import(crew: Crew, first: int, people: int) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for i in range(first, first + people):
            for shot in range(SHOTS):
                archive.writestr(f"p{i}/{shot}.png", images.encode_png(draw(person(i), shot)))
    path = f"/v1/collections/{COLLECTION}:import"
    return accepted(crew, lambda: crew.client.post(path, params={"aligned": "true"}, content=packed.getvalue()))


def start_switch(crew: Crew, name: str) -> str:
    body = {"recogniser": name, "override": True, "reason": "chaos"}
    return accepted(crew, lambda: crew.client.post(f"/v1/collections/{COLLECTION}:use-recogniser", json=body))


def champion(crew: Crew) -> str:
    return str(crew.client.get(DEPLOYMENT).json()["champion"])


@pytest.mark.parametrize("victim", ["default", "all"])
def test_a_switch_ends_and_goes_back_whoever_is_killed_meanwhile(crew: Crew, victim: str, tmp_path: Path) -> None:
    assert crew.ended(start_import(crew, 0, PEOPLE))["state"] == "succeeded"
    env = {name: None for name in os.environ if name.startswith("LIKENESS_")} | {"LIKENESS_HOME": str(crew.home)}
    model = learned_onnx(tmp_path / "theirs.onnx")
    result = CliRunner().invoke(app, ["recognisers", "add", str(model), "--yes"], env=env)
    assert result.exit_code == 0, result.output
    enrolled = PEOPLE
    for trial, delay in enumerate(DELAYS_SECONDS):
        name = "lbp" if trial % 2 else "theirs"
        importing = start_import(crew, enrolled, 3)
        switching = start_switch(crew, name)
        enrolled += 3
        time.sleep(delay)
        crew.kill(victim)
        for path in (switching, importing):
            job = crew.ended(path)
            assert job["state"] == "succeeded", job
        assert champion(crew).startswith("onnx-cosine-" if name == "theirs" else "lbp-l2")
        assert crew.rows("select count(*) from faces") == [(enrolled * SHOTS,)]
        check(crew, COLLECTION)
        served = champion(crew)
        assert crew.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] != served
        check(crew, COLLECTION)
        assert crew.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] == served
    assert crew.rows("select count(*) from models where id like 'onnx-%'") == [(1,)]
