"""A network that the operator trained with the command: named in the settings, used in a training, and searched by."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.config import Settings
from tests.flows.test_training import STRONG, train, upload
from tests.gallery import crops
from tests.ml.test_cnn_crops import photos
from tests.service import run_service

TEACH = [
    "models",
    "train-cnn",
    "--steps",
    "4",
    "--batch",
    "8",
    "--every",
    "0.001",
    "--threads",
    "1",
    "--licence",
    "CC0",
]


def test_a_trained_network_can_be_named_in_the_settings_trained_on_and_searched_by(tmp_path: Path) -> None:
    data, out = photos(tmp_path / "photos", range(50, 58), 2), tmp_path / "net"
    command = [*TEACH, "--data", str(data), "--out", str(out)]
    taught = CliRunner().invoke(app, command)
    assert taught.exit_code == 0, taught.output
    assert "people held out: mAP" in taught.output
    assert "16 photos of photos; light, softmax" in (out / "cnn.json").read_text()
    again = CliRunner().invoke(app, [*command, "--resume", "--batch", "9"])
    assert (again.exit_code, "batch of the resumed training" in again.output) == (1, True)

    settings = Settings(
        home=tmp_path / "home", workers=1, default_recogniser="lbp", descriptor_manifests={"ours": out / "cnn.json"}
    )
    with run_service(settings) as service:
        upload(service, "c", range(8), 3)
        unknown = train(service, method="cosine", descriptor="cnn")
        assert (unknown.status_code, "ours" in unknown.text) == (422, True)
        job = service.wait(train(service, method="cosine", descriptor="ours", holdout=0.25))
        assert job["state"] == "succeeded", job["problem"]
        model = job["result"]["model"]
        forced = {"model": model, "override": True, "reason": "a test of the way, not of the metric"}
        path = "/v1/collections/c/deployments/identity:publish"
        assert service.wait(service.client.post(path, json=forced))["state"] == "succeeded"
        photo = crops(3, 3000, STRONG)["grey"]
        answer = service.client.post(
            "/v1/collections/c/search", params={"aligned": True, "limit": 1}, files={"file": photo}
        )
        assert answer.status_code == 200, answer.text
        nearest = answer.json()["faces"][0]["matches"][0]
        assert (answer.json()["model"], nearest["subject"]["id"]) == (model, "p3")
        assert nearest["distance"] == pytest.approx(0, abs=1e-3)
