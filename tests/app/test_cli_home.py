"""Commands that use the service's home never create a second database by mistake."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.home import find_missing_database
from app.cli.main import app
from app.config import Settings

ROOT = Path(__file__).resolve().parents[2]


def likeness(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    env |= {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"} | settings
    command = [sys.executable, "-m", "app.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", [["keys", "create"], ["migrate"], ["worker"]], ids=" ".join)
def test_a_command_in_the_wrong_folder_creates_nothing(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("LIKENESS_")}
    refused = CliRunner().invoke(app, command, env=unset | {"NO_COLOR": "1", "COLUMNS": "200"})
    assert refused.exit_code == 2
    text = re.sub(r"[\s│]+", "", refused.stderr)
    assert str(tmp_path / ".likeness" / "likeness.sqlite") in text
    assert "LIKENESS_HOME" in text
    assert ("--new" in text) == (command != ["worker"])
    assert list(tmp_path.iterdir()) == []


def test_keys_are_created_in_the_database_of_the_named_home(tmp_path: Path) -> None:
    made = likeness(tmp_path, "keys", "create", "--new", "--role", "admin")
    assert made.returncode == 0, made.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = likeness(elsewhere, "keys", "create", LIKENESS_HOME=str(tmp_path / ".likeness"))
    assert again.returncode == 0, again.stderr
    assert list(elsewhere.iterdir()) == []
    with closing(sqlite3.connect(tmp_path / ".likeness" / "likeness.sqlite")) as database:
        assert database.execute("select count(*) from keys").fetchone() == (2,)


def test_only_a_missing_sqlite_file_counts_as_a_missing_database(tmp_path: Path) -> None:
    assert find_missing_database(Settings(home=tmp_path, database_url="postgresql://somebody@nowhere/likeness")) is None
    assert find_missing_database(Settings(home=tmp_path)) == tmp_path / "likeness.sqlite"
    (tmp_path / "likeness.sqlite").touch()
    assert find_missing_database(Settings(home=tmp_path)) is None
