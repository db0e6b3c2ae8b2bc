"""Every training method end to end: train over HTTP on synthetic faces, publish, search and roll back."""

import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from app.config import Settings
from ml import registry
from tests.flows.model_steps import publish_model, search_and_roll_back, wait_for_model
from tests.flows.test_training import train, upload
from tests.gallery import crops
from tests.service import Service, run_service

PEOPLE, SHOTS = 16, 3
AGES = 40
QUICK: dict[str, dict[str, Any]] = {
    "auto": {"options": {"folds": 2, "methods": ["wccn", "ldml"]}},
    "wpca": {"dim": 8},
    "ldml": {"dim": 8, "options": {"steps": 40}},
    "clml": {"dim": 8, "options": {"steps": 20, "first_steps": 20, "k": 2}},
    "flat": {"dim": 8, "options": {"steps": 20, "local_steps": 10, "k": 2}},
    "hierarchical": {"dim": 8, "options": {"steps": 20, "local_steps": 10, "depth": 3}},
    "scml": {"dim": 8, "options": {"steps": 40, "batch": 50, "bases": 30, "regions": 3, "k": 2, "local_steps": 10}},
    "stml": {"dim": 8, "options": {"steps": 60, "batch": 16, "pairs": 200}},
    "pcca": {"dim": 8, "options": {"steps": 60, "batch": 16, "pairs": 200}},
    "cpmtml": {"dim": 8, "options": {"steps": 60, "batch": 16, "pairs": 200, "auxiliary_pairs": 200}},
    "utml": {"dim": 8, "options": {"steps": 60, "batch": 16, "pairs": 200, "auxiliary_pairs": 200}},
    "mtlmca": {"dim": 8, "options": {"steps": 60, "batch": 16, "pairs": 200, "auxiliary_pairs": 200}},
    "qconv": {"dim": 8, "options": {"steps": 40}},
    "stiefel": {"dim": 8, "options": {"steps": 40}},
    "sml": {"options": {"steps": 40}},
    "cosim_mass": {"options": {"steps": 40}},
    "cosim_average": {"options": {"steps": 40}},
    "subsml": {"options": {"steps": 40, "pairs": 200}},
}
SEVERAL_TASKS = ("cpmtml", "utml", "mtlmca")
IDENTITY = {"task": "identity", "from": "subjects"}
AGE = {"task": "age", "collection": "aged", "from": "metadata.age", "tolerance": 3}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with named faces in `c` and faces with ages in `aged`, for all methods."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), poll_seconds=0.05, workers=1, default_recogniser="lbp")
    with run_service(settings) as started:
        upload(started, "c", range(PEOPLE), SHOTS)
        upload_with_ages(started)
        assert started.client.put("/v1/tasks/age", json={"enabled": True}).status_code in (200, 201)
        yield started


def upload_with_ages(service: Service) -> None:
    """Upload one face each of other people, with a manifest of their ages."""
    packed, entries = io.BytesIO(), []
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for who in range(200, 200 + AGES):
            entries.append({"file": f"{who}.png", "metadata": {"age": 20 + who % 10}})
            _add(tar, f"{who}.png", crops(who, who, 1.0)["grey"])
        _add(tar, "manifest.jsonl", "\n".join(json.dumps(entry) for entry in entries).encode())
    service.client.put("/v1/collections/aged")
    path = "/v1/collections/aged:import"
    job = service.wait(service.client.post(path, params={"aligned": True}, content=packed.getvalue()))
    assert (job["progress"]["done"], job["progress"]["failed"]) == (AGES, 0), job


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("method", registry.names("embedders"))
def test_a_model_of_each_method_can_be_trained_published_searched_and_rolled_back(
    service: Service, method: str
) -> None:
    fields, tasks = QUICK.get(method, {}), ["identity"]
    if method in SEVERAL_TASKS:
        fields, tasks = fields | {"sources": [IDENTITY, AGE]}, ["identity", "age"]
    model = wait_for_model(service, train(service, method=method, holdout=0.25, **fields))
    assert (model["method"], model["tasks"]) == (method, tasks)
    publish_model(service, model["id"])
    from_zero = registry.build("embedders", method).metric.is_euclidean
    search_and_roll_back(service, model["id"], tasks, from_zero=from_zero)


@pytest.mark.parametrize("method", ["cosim_mass", "cosim_average", "subsml"])
def test_a_model_that_fuses_two_descriptors_can_be_published_and_searched(service: Service, method: str) -> None:
    fields = QUICK[method] | {"descriptors": ["lbp", "sift"]}
    model = wait_for_model(service, train(service, method=method, holdout=0.25, **fields))
    assert [d["name"] for d in model["descriptors"]] == ["lbp", "sift"]
    publish_model(service, model["id"])
    search_and_roll_back(service, model["id"], from_zero=False)
