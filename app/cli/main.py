"""The command `likeness`. The module of a subcommand is imported when the subcommand runs."""

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from app.imports import import_uncollected
from app.storage.private_files import make_files_private

COMMANDS = {
    "serve": "app.cli.server.commands:serve",
    "worker": "app.cli.server.commands:worker",
    "migrate": "app.cli.server.commands:migrate",
    "import": "app.cli.service_commands:import_",
    "search": "app.cli.service_commands:search",
    "train": "app.cli.train:train",
    "publish": "app.cli.service_commands:publish",
    "compare": "app.cli.compare:compare",
    "doctor": "app.cli.doctor:doctor",
    "atlas": "app.cli.atlas:atlas",
    "demo": "app.cli.demo:app",
    "forecast": "app.cli.forecast:forecast",
    "evaluate": "app.cli.datasets.evaluate:evaluate",
    "export-embeddings": "app.cli.datasets.export:export_embeddings",
    "erase": "app.cli.administration.erase:app",
    "models": "app.cli.models:app",
    "keys": "app.cli.administration.keys:app",
    "audit": "app.cli.administration.audit:app",
    "snapshot": "app.cli.administration.snapshots:snapshot",
    "restore": "app.cli.administration.snapshots:restore",
    "recognisers": "app.cli.recognisers.commands:app",
    "detectors": "app.cli.detectors:app",
}


class LazyCommands(TyperGroup):
    """The commands of the service, and those of other packages (entry points of the group `likeness.commands`)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *sorted(plugin.name for plugin in entry_points(group="likeness.commands"))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command. Returns None if no command has this name."""
        for plugin in entry_points(group="likeness.commands", name=cmd_name):
            return _build_command(cmd_name, plugin.load())
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        return _build_command(cmd_name, getattr(import_uncollected(module), attribute))


def _build_command(name: str, target: Any) -> Any:
    """Build a command from a function, or a group of commands from a Typer application."""
    if isinstance(target, typer.Typer):
        group = get_group(target)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name)(target)
    return get_command(single)


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def likeness() -> None:
    """The service and its tools, from a terminal."""


def main() -> None:
    make_files_private()
    app()
