"""What `likeness train`, `publish` and `search` print."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from tests.flows.test_training import upload
from tests.gallery import crops
from tests.service import Service


def run_command(*arguments: str) -> tuple[int, str]:
    printed = CliRunner().invoke(app, list(arguments))
    return printed.exit_code, printed.output


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_commands_say_in_words_what_came_of_them(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_URL", service.url)
    monkeypatch.setenv("LIKENESS_KEY", service.client.headers["Authorization"].removeprefix("Bearer "))
    upload(service, "c", range(16), shots=3)

    photo = tmp_path / "photo.png"
    photo.write_bytes(crops(1, 1000, 1.0)["grey"])
    code, printed = run_command("search", "c", str(photo), "--aligned")
    assert code == 0, printed
    assert "needs a hundred faces" in printed

    code, printed = run_command("train", "c", "--method", "wpca", "--dim", "8", "--out", str(tmp_path / "report.json"))
    assert code == 0, printed
    result = json.loads((tmp_path / "report.json").read_text())
    assert f"likeness publish c {result['model']}" in printed
    assert f"measured on {result['report']['held_out_people']} people" in printed
    assert "right person" in printed
    assert len(printed.splitlines()) < 30

    code, printed = run_command("publish", "c", result["model"])
    assert code == 1
    assert "NotMeasured" in printed
    assert printed.count("10 are needed") == 1
    code, printed = run_command("publish", "c", result["model"], "--override", "a trial")
    assert code == 0, printed
    assert f"{result['model']} serves identity in c." in printed
    assert "Published against the gate: " in printed
    code, printed = run_command("search", "c", str(photo), "--aligned")
    assert "too few people are enrolled" in printed
