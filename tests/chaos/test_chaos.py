"""Kill processes at random moments of imports, trainings and publications; afterwards nothing is lost or repeated."""

import io
import logging
import os
import random
import time
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ml import images
from ml.synthetic_faces import draw, person
from tests.service_subprocess import ServiceSubprocess, check_consistency

TRIALS = int(os.environ.get("CHAOS_TRIALS", "30"))
SERVICES = int(os.environ.get("CHAOS_SERVICES", "2"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
COLLECTION = "chaos"
PHOTOS_PER_PERSON = 5
log = logging.getLogger("chaos")

CheckJob = Callable[[dict[str, Any]], None]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60 + 60 * TRIALS)]


def send_until_accepted(send: Callable[[], httpx.Response]) -> str:
    """Send a request again while it is cut off or answered 503. Returns the job's path, empty for an answer at once."""
    for _ in range(200):
        try:
            answer = send()
            if answer.status_code != 503:
                assert answer.status_code in (200, 202), answer.text
                return answer.headers.get("Location", "")
        except httpx.TransportError:
            time.sleep(0.05)
        time.sleep(0.1)
    raise AssertionError("the request was never accepted")


class Workload:
    """Work to start before a process is killed. Each method returns the job's path and a check of the ended job."""

    def __init__(self, service: ServiceSubprocess, rng: random.Random) -> None:
        self.service, self.rng = service, rng
        self.people = 0
        self.models: list[str] = []

    def ingest(self) -> tuple[str, CheckJob]:
        packed, count = io.BytesIO(), self.rng.randint(4, 12)
        with zipfile.ZipFile(packed, "w") as archive:
            for i in range(self.people, self.people + count):
                for photo in range(PHOTOS_PER_PERSON):
                    archive.writestr(f"p{i}/{photo}.png", images.encode_png(draw(person(i), photo)))
        self.people += count
        before = self.count_faces()

        def send() -> httpx.Response:
            path = f"/v1/collections/{COLLECTION}:import"
            return self.service.client.post(path, params={"aligned": "true"}, content=packed.getvalue())

        def check(job: dict[str, Any]) -> None:
            assert job["state"] == "succeeded", job
            assert (job["progress"]["done"], job["progress"]["failed"]) == (count * PHOTOS_PER_PERSON, 0)
            assert self.count_faces() == before + count * PHOTOS_PER_PERSON

        return send_until_accepted(send), check

    def train(self) -> tuple[str, CheckJob]:
        method = self.rng.choice(["wpca", "ldml"])
        options = {"steps": 150} if method == "ldml" else {}
        body = {"collection": COLLECTION, "method": method, "descriptor": "lbp", "dim": 8, "options": options}
        path = send_until_accepted(lambda: self.service.client.post("/v1/trainings", json=body))

        def check(job: dict[str, Any]) -> None:
            assert job["state"] == "succeeded", job
            self.models.append(job["result"]["model"])
            training = job["result"]["training"]
            models = self.service.query("select count(*) from models where training_id = ?", training)
            assert models == [(1,)], "one training, one model"

        return path, check

    def publish(self) -> tuple[str, CheckJob]:
        url = f"/v1/collections/{COLLECTION}/deployments/identity:publish"
        [(champion,)] = self.service.query("select champion from deployments")
        model = self.rng.choice([m for m in (*self.models, "lbp-l2") if m != champion])
        body = {"model": model, "override": True, "reason": "chaos"}
        path = send_until_accepted(lambda: self.service.client.post(url, json=body))

        def check(job: dict[str, Any]) -> None:
            assert job["state"] == "succeeded", job
            assert self.service.client.get(url.removesuffix(":publish")).json()["champion"] == model

        return path, check

    def count_faces(self) -> int:
        return int(self.service.query("select count(*) from faces")[0][0])


@pytest.mark.parametrize("number", range(SERVICES))
def test_accepted_work_is_neither_lost_nor_repeated_when_processes_are_killed(
    service: ServiceSubprocess, number: int
) -> None:
    """The trials are divided among several services. number: which of them this one is."""
    rng = random.Random(SEED + number)
    workload = Workload(service, rng)
    path, check = workload.ingest()
    check(service.wait_for_job(path))
    path, check = workload.train()
    check(service.wait_for_job(path))
    for trial in range(number, TRIALS, SERVICES):
        kind = rng.choice(["ingest", "train", "publish", "publish"])
        victim = rng.choice(
            ["default", "training", "api", "all"] if kind == "train" else ["default", "default", "api", "all"]
        )
        log.info("trial %d: %s, kill %s", trial, kind, victim)
        path, check = getattr(workload, kind)()
        time.sleep(rng.choice([0.0, 0.05, 0.2, 0.5, 1.0, 2.0]) * rng.random())
        service.kill(victim)
        check(service.wait_for_job(path))
        check_consistency(service, COLLECTION)
    unfinished = service.query("select kind, state from jobs where state in ('queued', 'running') and kind != 'sweep'")
    assert not unfinished
