"""The commands of `likeness` are listed without importing the modules that implement them."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from app.cli.main import COMMANDS, app

NOT_NEEDED = ("torch", "matplotlib", "plotly", "sklearn", "scipy.linalg", "scipy.special", "redis", "alembic", "papers")


@pytest.mark.parametrize("command", [*COMMANDS])
def test_every_command_can_be_imported_and_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_the_help_lists_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert all(command in output for command in COMMANDS)


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(app, ["serv"])
    assert result.exit_code == 2


@pytest.mark.parametrize("module", ["app.cli.server.service", "workers.main"])
def test_a_process_starts_without_libraries_that_it_may_not_need(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {NOT_NEEDED} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []
