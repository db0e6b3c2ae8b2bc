"""Kill processes while a collection is switched to another recogniser and back, and photos are imported meanwhile."""

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from ml import images
from ml.synthetic_faces import draw, person
from tests.chaos.gallery_work import pack_photos
from tests.chaos.workload import read_job_path, send_until_accepted
from tests.ml.learned_onnx import learned_onnx
from tests.service_subprocess import ServiceSubprocess, check_consistency

COLLECTION = "switching"
DEPLOYMENT = f"/v1/collections/{COLLECTION}/deployments/identity"
PEOPLE, PHOTOS_PER_PERSON = 20, 4
DELAYS_SECONDS = (0.0, 0.05, 0.15, 0.4)
VICTIMS = ("default", "all")
SWITCHING_TRIALS = len(VICTIMS) * len(DELAYS_SECONDS)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


def start_import(service: ServiceSubprocess, first_person: int, people: int) -> str:
    people_range = range(first_person, first_person + people)
    photos = {
        f"p{i}/{n}.png": images.encode_png(draw(person(i), n)) for i in people_range for n in range(PHOTOS_PER_PERSON)
    }
    path, content = f"/v1/collections/{COLLECTION}:import", pack_photos(photos)
    answer = send_until_accepted(lambda: service.client.post(path, params={"aligned": "true"}, content=content))
    return read_job_path(answer)


def start_switch(service: ServiceSubprocess, recogniser: str) -> str:
    body = {"recogniser": recogniser, "override": True, "reason": "chaos"}
    path = f"/v1/collections/{COLLECTION}:use-recogniser"
    return read_job_path(send_until_accepted(lambda: service.client.post(path, json=body)))


def read_champion(service: ServiceSubprocess) -> str:
    return str(service.client.get(DEPLOYMENT).json()["champion"])


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_recogniser_switch_completes_and_can_be_rolled_back_when_processes_are_killed(
    service: ServiceSubprocess, victim: str, tmp_path: Path
) -> None:
    assert service.wait_for_job(start_import(service, 0, PEOPLE))["state"] == "succeeded"
    env = {name: None for name in os.environ if name.startswith("LIKENESS_")} | {"LIKENESS_HOME": str(service.home)}
    model = learned_onnx(tmp_path / "theirs.onnx")
    result = CliRunner().invoke(app, ["recognisers", "add", str(model), "--yes"], env=env)
    assert result.exit_code == 0, result.output
    people = PEOPLE
    for trial, delay in enumerate(DELAYS_SECONDS):
        recogniser = "lbp" if trial % 2 else "theirs"
        import_job = start_import(service, people, 3)
        switch_job = start_switch(service, recogniser)
        people += 3
        time.sleep(delay)
        service.kill(victim)
        for path in (switch_job, import_job):
            job = service.wait_for_job(path)
            assert job["state"] == "succeeded", job
        champion = read_champion(service)
        assert champion.startswith("onnx-cosine-" if recogniser == "theirs" else "lbp-l2")
        assert service.query("select count(*) from faces") == [(people * PHOTOS_PER_PERSON,)]
        check_consistency(service, COLLECTION)
        assert service.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] != champion
        check_consistency(service, COLLECTION)
        assert service.client.post(f"{DEPLOYMENT}:rollback").json()["champion"] == champion
    assert service.query("select count(*) from models where id like 'onnx-%'") == [(1,)]
