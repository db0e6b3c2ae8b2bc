"""SIGKILL at every step of ingest, training, re-embedding, publishing and snapshots; then everything must hold."""

import io
import logging
import os
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ml import images
from ml.synthetic_faces import draw, person
from tests.conftest import free_port
from tests.crew import Crew, check

TRIALS = int(os.environ.get("CHAOS_TRIALS", "30"))
CREWS = int(os.environ.get("CHAOS_CREWS", "2"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
COLLECTION = "chaos"
SHOTS = 5
log = logging.getLogger("chaos")

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60 + 60 * TRIALS)]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    home = tmp_path / "home"
    home.mkdir()
    started = Crew(home, free_port())
    started.client.put(f"/v1/collections/{COLLECTION}")
    yield started
    started.stop()


def accepted(crew: Crew, ask: Callable[[], httpx.Response]) -> str:
    """The path of the job, empty where it was done at once. A request cut off before its answer is asked again."""
    for _ in range(200):
        try:
            answer = ask()
            if answer.status_code != 503:
                assert answer.status_code in (200, 202), answer.text
                return answer.headers.get("Location", "")
        except httpx.TransportError:
            time.sleep(0.05)
        time.sleep(0.1)
    raise AssertionError("never accepted")


class Trials:
    """One kind of work each; `promised` is what was answered to clients and must be there ever after."""

    def __init__(self, crew: Crew, chance: random.Random) -> None:
        self.crew, self.chance = crew, chance
        self.people = 0
        self.promised: set[str] = set()
        self.models: list[str] = []

    def ingest(self) -> tuple[str, Callable[[dict], None]]:
        packed, count = io.BytesIO(), self.chance.randint(4, 12)
        with zipfile.ZipFile(packed, "w") as archive:
            for i in range(self.people, self.people + count):
                for shot in range(SHOTS):
                    archive.writestr(f"p{i}/{shot}.png", images.encode_png(draw(person(i), shot)))
        self.people += count
        before = self.faces()

        def ask() -> httpx.Response:
            path = f"/v1/collections/{COLLECTION}:import"
            return self.crew.client.post(path, params={"aligned": "true"}, content=packed.getvalue())

        def look(job: dict) -> None:  # type: ignore[type-arg]
            assert job["state"] == "succeeded", job
            assert (job["progress"]["done"], job["progress"]["failed"]) == (count * SHOTS, 0)
            assert self.faces() == before + count * SHOTS

        return accepted(self.crew, ask), look

    def train(self) -> tuple[str, Callable[[dict], None]]:
        method = self.chance.choice(["wpca", "ldml"])
        options = {"steps": 150} if method == "ldml" else {}
        body = {"collection": COLLECTION, "method": method, "descriptor": "lbp", "dim": 8, "options": options}
        path = accepted(self.crew, lambda: self.crew.client.post("/v1/trainings", json=body))

        def look(job: dict) -> None:  # type: ignore[type-arg]
            assert job["state"] == "succeeded", job
            self.models.append(job["result"]["model"])
            made = self.crew.rows("select count(*) from models where training_id = ?", job["result"]["training"])
            assert made == [(1,)], "one training, one model"

        return path, look

    def publish(self) -> tuple[str, Callable[[dict], None]]:
        url = f"/v1/collections/{COLLECTION}/deployments/identity:publish"
        [(serving,)] = self.crew.rows("select champion from deployments")
        model = self.chance.choice([m for m in (*self.models, "lbp-l2") if m != serving])
        body = {"model": model, "override": True, "reason": "chaos"}
        path = accepted(self.crew, lambda: self.crew.client.post(url, json=body))

        def look(job: dict) -> None:  # type: ignore[type-arg]
            assert job["state"] == "succeeded", job
            assert self.crew.client.get(url.removesuffix(":publish")).json()["champion"] == model

        return path, look

    def faces(self) -> int:
        return self.crew.rows("select count(*) from faces")[0][0]


@pytest.mark.parametrize("number", range(CREWS))
def test_nothing_accepted_is_lost_or_doubled_whoever_is_killed(crew: Crew, number: int) -> None:
    """Each crew is a service of its own, with its share of the trials."""
    chance = random.Random(SEED + number)
    trials = Trials(crew, chance)
    path, look = trials.ingest()
    look(crew.ended(path))
    path, look = trials.train()
    look(crew.ended(path))
    for trial in range(number, TRIALS, CREWS):
        kind = chance.choice(["ingest", "train", "publish", "publish"])
        victim = chance.choice(
            ["default", "training", "api", "all"] if kind == "train" else ["default", "default", "api", "all"]
        )
        log.info("trial %d: %s, kill %s", trial, kind, victim)
        path, look = getattr(trials, kind)()
        time.sleep(chance.choice([0.0, 0.05, 0.2, 0.5, 1.0, 2.0]) * chance.random())
        crew.kill(victim)
        look(crew.ended(path))
        check(crew, COLLECTION)
    stuck = crew.rows("select kind, state from jobs where state in ('queued', 'running') and kind != 'sweep'")
    assert not stuck
