"""Forget a person: delete them, and refit the models that learned from them, over HTTP and with the command."""

import time
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.galleries.erasure_receipts import hash_subject
from tests.flows.test_training import train, upload
from tests.service import Service

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def wait_for_receipt(service: Service, path: str, seconds: float = 60) -> dict[str, Any]:
    """Return the receipt of an erasure once it is final."""
    until = time.monotonic() + seconds
    while (receipt := dict(service.client.get(path).json()))["state"] != "final":
        assert time.monotonic() < until, receipt
        time.sleep(0.1)
    return receipt


@on_sqlite
def test_a_deleted_person_can_be_forgotten_by_the_models(service: Service) -> None:
    upload(service, "c", range(16), shots=3)
    job = service.wait(train(service, method="wpca", dim=8), 120)
    model = job["result"]["model"]
    receipt = service.client.delete("/v1/collections/c/subjects/p3").json()
    assert (receipt["faces"], receipt["models"]) == (3, [model])
    key = str(service.client.headers["Authorization"]).removeprefix("Bearer ")
    env = {"LIKENESS_URL": service.url, "LIKENESS_KEY": key}
    result = CliRunner().invoke(app, ["models", "without", "p3", "--model", model], env=env)
    assert result.exit_code == 0, result.output
    [refit] = [m["id"] for m in service.client.get("/v1/models").json()["models"] if m["id"] > model]
    assert f"{refit} never saw p3" in " ".join(result.output.split())
    facts = service.client.get(f"/v1/models/{refit}").json()["manifest"]["facts"]
    hashed = hash_subject(service.resources.installation_key, "c", "p3")
    assert (facts["without"], facts["refit_of"]) == ({"c": [hashed]}, model), "the hash that the receipt has"
    erasure = wait_for_receipt(service, receipt["erasure"])
    assert (erasure["subject"], erasure["models"]) == (hashed, [model])
    files = (path for path in (service.resources.models.folder / refit).iterdir())
    assert not any(b'"p3"' in path.read_bytes() for path in files)
    job = service.wait(service.client.post(f"/v1/models/{refit}:publish", json={"collection": "c"}), 120)
    assert job["result"]["model"] == refit if job["state"] == "succeeded" else job["problem"]["code"] == "NotMeasured"


@on_sqlite
def test_a_built_in_model_has_nobody_to_forget(service: Service) -> None:
    upload(service, "c", range(2), shots=1)
    answer = service.client.post("/v1/models/lbp-l2:refit", json={"without": ["p1"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "CannotForget")
    assert service.client.post("/v1/models/lbp-l2:refit", json={"without": []}).status_code == 422
    assert service.client.post("/v1/models/none:refit", json={"without": ["p1"]}).status_code == 404
